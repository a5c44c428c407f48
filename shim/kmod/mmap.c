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
	u32 ctx;
	u32 generation;
	bool dead;
	u64 addr; /* in the context */
	u64 len;
	u64 *phys; /* of each HBM page from addr's on; NULL: addr is physical */
};

static u64 kz_map_phys(const struct kz_map *m, u64 addr)
{
	u32 page = m->kf->kz->hbm_page;

	return m->phys ? m->phys[(addr - m->addr) / page] + (addr & (page - 1)) : addr;
}

static vm_fault_t kz_map_insert(struct kz_map *m, struct vm_fault *vmf)
{
	struct kz_device *kz = m->kf->kz;
	struct vm_area_struct *vma = vmf->vma;
	u64 addr = ((u64)vmf->pgoff << PAGE_SHIFT) & ((1ull << KZ_MMAP_SHIFT) - 1);
	u64 bar = pci_resource_start(kz->pdev, KZ_BAR_HBM);
	unsigned long at = vmf->address & PAGE_MASK;
	vm_fault_t rc;

	if (m->dead || kz_state(kz) != KZ_STATE_LIVE || m->generation != READ_ONCE(kz->generation))
		return VM_FAULT_SIGBUS;
	do { /* the rest of the HBM page, since it will be wanted next */
		rc = vmf_insert_pfn(vma, at, (bar + kz_map_phys(m, addr)) >> PAGE_SHIFT);
		at += PAGE_SIZE;
		addr += PAGE_SIZE;
	} while (rc == VM_FAULT_NOPAGE && at < vma->vm_end && addr - m->addr < m->len && (addr & (kz->hbm_page - 1)));
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

/* Under kf->lock: what the range is made of, or why it may not be mapped. */
static int kz_map_resolve(struct kz_map *m)
{
	struct kz_device *kz = m->kf->kz;
	u64 page = kz->hbm_page, i, n;
	struct kz_context *c;
	struct kz_hbm *h;
	int rc = 0;

	c = kz_ctx_find(m->kf, m->ctx, &rc);
	if (!c)
		return rc;
	if (!kz_ctx_alive(kz, c))
		return -ESTALE;
	m->generation = c->generation;
	if (m->ctx == KZ_CTX_ROOT)
		return m->len <= kz->hbm_bytes && kz_in_bar(kz, m->addr, m->len) ? 0 : -EINVAL;
	h = kz_hbm_find(c, m->addr);
	if (!h || m->len > h->len - (m->addr - h->addr))
		return -EACCES; /* not one allocation of the caller's */
	rc = kz_hbm_pages(m->kf, c, h);
	if (rc)
		return rc;
	i = (m->addr - h->addr) / page;
	n = (m->addr + m->len - h->addr + page - 1) / page - i;
	m->phys = kvmalloc_array(n, sizeof(*m->phys), GFP_KERNEL_ACCOUNT);
	if (!m->phys)
		return -ENOMEM;
	memcpy(m->phys, h->phys + i, n * sizeof(*m->phys));
	for (i = 0; i < n; i++) {
		if (!kz_in_bar(kz, m->phys[i], page))
			return -ENXIO; /* the aperture does not reach that far */
	}
	return 0;
}

static int kz_map_create(struct kz_file *kf, struct vm_area_struct *vma)
{
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	struct kz_map *m = kzalloc(sizeof(*m), GFP_KERNEL_ACCOUNT);
	int rc;

	if (!m)
		return -ENOMEM;
	m->kf = kf;
	m->ctx = offset >> KZ_MMAP_SHIFT;
	m->addr = offset & ((1ull << KZ_MMAP_SHIFT) - 1);
	m->len = vma->vm_end - vma->vm_start;
	refcount_set(&m->vmas, 1);
	mutex_lock(&kf->lock);
	rc = kz_map_resolve(m);
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
void kz_unmap_hbm(struct kz_file *kf, u32 ctx, u64 addr, u64 len)
{
	struct kz_map *m;
	bool any = false;

	if (ctx == KZ_CTX_ROOT)
		return; /* physical HBM is mapped as such, whoever owns it */
	mutex_lock(&kf->map_lock);
	list_for_each_entry(m, &kf->maps, node) {
		if (m->ctx == ctx && m->addr < addr + len && addr < m->addr + m->len)
			any = m->dead = true;
	}
	if (any)
		unmap_mapping_range(kf->mapping, KZ_MMAP_HBM(ctx, addr), len, 1);
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
