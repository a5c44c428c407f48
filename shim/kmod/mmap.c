// SPDX-License-Identifier: GPL-2.0
/*
 * The HBM aperture in user space: pages of an own context, or physical HBM for CAP_SYS_ADMIN. Pages come in by fault,
 * under map_lock and only while the mapping is alive; who ends a mapping marks it dead first and then takes the pages
 * out, so none can come in behind.
 */
#include <linux/capability.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "kz.h"

struct kz_map {
	struct list_head node; /* kf->maps, under map_lock */
	struct kz_file *kf;
	refcount_t vmas;
	u32 id; /* of the allocation; 0: physical HBM */
	u32 generation;
	bool dead;
	u64 len; /* of the allocation, or of what of physical HBM the aperture shows */
	u64 *phys; /* of each HBM page of the allocation; NULL: offsets are physical */
};

static u64 kz_map_offset(unsigned long pgoff)
{
	return ((u64)pgoff << PAGE_SHIFT) & ((1ull << KZ_MMAP_SHIFT) - 1);
}

static u64 kz_map_phys(const struct kz_map *m, u64 off)
{
	u32 page = m->kf->kz->hbm_page;

	if (KZ_BUG(17) && m->phys) /* as if it were in one piece, and had no end */
		return m->phys[0] + off;
	return m->phys ? m->phys[off / page] + (off & (page - 1)) : off;
}

static vm_fault_t kz_map_insert(struct kz_map *m, struct vm_fault *vmf)
{
	struct kz_device *kz = m->kf->kz;
	struct vm_area_struct *vma = vmf->vma;
	u64 bar = pci_resource_start(kz->pdev, KZ_BAR_HBM);
	unsigned long at = vmf->address & PAGE_MASK;
	u64 off = kz_map_offset(vmf->pgoff);
	vm_fault_t rc;

	if (m->dead || kz_state(kz) != KZ_STATE_LIVE || m->generation != READ_ONCE(kz->generation))
		return VM_FAULT_SIGBUS;
	do { /* the rest of the HBM page, since it will be wanted next */
		if (off >= m->len && !KZ_BUG(17))
			return VM_FAULT_SIGBUS;
		rc = vmf_insert_pfn(vma, at, (bar + kz_map_phys(m, off)) >> PAGE_SHIFT);
		at += PAGE_SIZE;
		off += PAGE_SIZE;
	} while (rc == VM_FAULT_NOPAGE && at < vma->vm_end && (off & (kz->hbm_page - 1)));
	return rc;
}

static vm_fault_t kz_map_fault(struct vm_fault *vmf)
{
	struct kz_map *m = vmf->vma->vm_private_data;
	vm_fault_t rc = VM_FAULT_SIGBUS;
	int idx;

	if (kz_begin(m->kf->kz, &idx))
		return rc;
	mutex_lock(&m->kf->map_lock);
	rc = kz_map_insert(m, vmf);
	mutex_unlock(&m->kf->map_lock);
	kz_end(m->kf->kz, idx);
	return rc;
}

static void kz_map_open(struct vm_area_struct *vma)
{
	struct kz_map *m = vma->vm_private_data;

	refcount_inc(&m->vmas);
}

static void kz_map_close(struct vm_area_struct *vma)
{
	struct kz_map *m = vma->vm_private_data;

	if (!refcount_dec_and_test(&m->vmas))
		return;
	mutex_lock(&m->kf->map_lock);
	list_del(&m->node);
	mutex_unlock(&m->kf->map_lock);
	atomic_dec(&m->kf->kz->maps);
	kvfree(m->phys);
	kfree(m);
}

static const struct vm_operations_struct kz_map_ops = {
	.open = kz_map_open,
	.close = kz_map_close,
	.fault = kz_map_fault,
};

static bool kz_in_bar(struct kz_device *kz, u64 phys, u64 len)
{
	u64 bar = pci_resource_len(kz->pdev, KZ_BAR_HBM);

	return phys < bar && len <= bar - phys;
}

/* Under kf->lock: physical HBM, for those who may. */
static int kz_map_physical(struct kz_map *m)
{
	struct kz_device *kz = m->kf->kz;
	int rc = 0;

	if (!kz_ctx_find(m->kf, KZ_CTX_ROOT, &rc))
		return rc;
	m->generation = READ_ONCE(kz->generation);
	m->len = min_t(u64, kz->hbm_bytes, pci_resource_len(kz->pdev, KZ_BAR_HBM));
	return 0;
}

/* Under kf->lock: an allocation of the file. */
static int kz_map_allocation(struct kz_map *m)
{
	struct kz_device *kz = m->kf->kz;
	struct kz_context *c;
	struct kz_hbm *h = kz_hbm_by_id(m->kf, m->id, &c);
	u64 i, n;
	int rc;

	if (!h)
		return -EACCES;
	if (!kz_ctx_alive(kz, c))
		return -ESTALE;
	rc = kz_hbm_pages(m->kf, c, h);
	if (rc)
		return rc;
	m->generation = c->generation;
	m->len = h->len;
	n = h->len / kz->hbm_page;
	for (i = 0; i < n; i++) {
		if (!kz_in_bar(kz, h->phys[i], kz->hbm_page))
			return -ENXIO; /* the aperture does not reach that far */
	}
	m->phys = kvmalloc_array(n, sizeof(*m->phys), GFP_KERNEL_ACCOUNT);
	if (!m->phys)
		return -ENOMEM;
	memcpy(m->phys, h->phys, n * sizeof(*m->phys));
	return 0;
}

static int kz_map_create(struct kz_file *kf, struct vm_area_struct *vma)
{
	u64 off = kz_map_offset(vma->vm_pgoff);
	struct kz_map *m = kzalloc(sizeof(*m), GFP_KERNEL_ACCOUNT);
	int rc;

	if (!m)
		return -ENOMEM;
	m->kf = kf;
	m->id = ((u64)vma->vm_pgoff << PAGE_SHIFT) >> KZ_MMAP_SHIFT;
	refcount_set(&m->vmas, 1);
	mutex_lock(&kf->lock);
	rc = m->id ? kz_map_allocation(m) : kz_map_physical(m);
	if (!rc && !KZ_BUG(17) && (off >= m->len || vma->vm_end - vma->vm_start > m->len - off))
		rc = -EINVAL;
	if (!rc) {
		mutex_lock(&kf->map_lock);
		list_add(&m->node, &kf->maps);
		mutex_unlock(&kf->map_lock);
		atomic_inc(&kf->kz->maps);
	}
	mutex_unlock(&kf->lock);
	if (rc) {
		kvfree(m->phys);
		kfree(m);
		return rc;
	}
	vma->vm_private_data = m;
	vma->vm_ops = &kz_map_ops;
	return 0;
}

int kz_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct kz_file *kf = file->private_data;
	int idx, rc;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	rc = kz_begin_live(kf->kz, &idx, true);
	if (rc)
		return rc;
	rc = kz_map_create(kf, vma);
	if (!rc) {
		kz_vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
		vma->vm_page_prot = pgprot_writecombine(vma->vm_page_prot);
	}
	kz_end_live(kf->kz, idx);
	return rc;
}

/* Takes an allocation out of the file's mappings for good. */
void kz_unmap_hbm(struct kz_file *kf, const struct kz_hbm *h)
{
	struct kz_map *m;
	bool any = false;

	mutex_lock(&kf->map_lock);
	list_for_each_entry(m, &kf->maps, node) {
		if (m->id == h->id)
			any = m->dead = true;
	}
	if (any)
		unmap_mapping_range(kf->mapping, (u64)h->id << KZ_MMAP_SHIFT, h->len, 1);
	mutex_unlock(&kf->map_lock);
}

/* Every page of every mapping. The device is no longer LIVE, so none comes back. */
void kz_zap_all(struct kz_device *kz)
{
	struct kz_file *kf;

	mutex_lock(&kz->files_lock);
	list_for_each_entry(kf, &kz->files, node) {
		mutex_lock(&kf->map_lock);
		if (!list_empty(&kf->maps))
			unmap_mapping_range(kf->mapping, 0, 0, 1);
		mutex_unlock(&kf->map_lock);
	}
	mutex_unlock(&kz->files_lock);
}
