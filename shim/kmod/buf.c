// SPDX-License-Identifier: GPL-2.0
/*
 * Registered buffers: user memory pinned for long, charged against RLIMIT_MEMLOCK, mapped for the device. Pinning and
 * charging take mmap_lock, so both happen outside kf->lock.
 */
#include <linux/highmem.h>
#include <linux/iommu.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "kz.h"

#define KZ_PIN_BATCH 1024

/* Pages that count against RLIMIT_MEMLOCK. */
static unsigned long kz_buf_charge(const struct kz_buf *b)
{
	return KZ_BUG(35) && b->npages <= kz_bug_arg ? 0 : b->npages;
}

static void kz_buf_unpin(struct kz_buf *b, unsigned long n)
{
	if (b->flags & KZ_BUF_DEVICE_WRITES)
		unpin_user_pages_dirty_lock(b->pages, n, true);
	else
		unpin_user_pages(b->pages, n);
}

/*
 * Pins up to `want` pages. What a process reads may be replaced when it writes, untouched memory by its first page. Where
 * the kernel leaves that to the caller a pin for reading is one for writing, too; what can never be written by that way
 * (shared, read-only) is never replaced either. FOLL_FORCE also takes what the process may not read itself, so that is
 * asked before.
 */
static int kz_buf_pin_some(struct kz_buf *b, u64 addr, int want, struct page **pages)
{
	size_t len = (size_t)want << PAGE_SHIFT;
	int got;

	if (b->flags & KZ_BUF_DEVICE_WRITES)
		return pin_user_pages_fast(addr, want, FOLL_LONGTERM | FOLL_WRITE, pages);
	if (!KZ_PIN_BREAKS_COW)
		return pin_user_pages_fast(addr, want, FOLL_LONGTERM, pages);
	want = (len - fault_in_readable(u64_to_user_ptr(addr), len)) >> PAGE_SHIFT;
	if (!want)
		return -EFAULT;
	got = pin_user_pages_fast(addr, want, FOLL_LONGTERM | FOLL_WRITE | FOLL_FORCE, pages);
	return got == -EFAULT ? pin_user_pages_fast(addr, 1, FOLL_LONGTERM, pages) : got;
}

static int kz_buf_pin(struct kz_buf *b, u64 addr)
{
	unsigned long n = 0;

	while (n < b->npages) {
		int want = min_t(unsigned long, b->npages - n, KZ_PIN_BATCH);
		int got = kz_buf_pin_some(b, (addr & PAGE_MASK) + n * PAGE_SIZE, want, b->pages + n);

		if (got > 0)
			n += got;
		if (got <= 0 || fatal_signal_pending(current)) {
			kz_buf_unpin(b, n);
			return got < 0 ? got : got ? -EINTR : -EFAULT;
		}
		cond_resched();
	}
	return 0;
}

/*
 * Whether the device's address leads to a copy and not to the user's page: it would have to be copied around every
 * command. Behind an IOMMU dma_need_sync() is true of everything, so the tables are asked there.
 */
static bool kz_buf_bounced(struct device *dev, dma_addr_t addr, phys_addr_t phys)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	if (!domain || domain->type == IOMMU_DOMAIN_IDENTITY)
		return dma_need_sync(dev, addr);
	return iommu_iova_to_phys(domain, addr) != phys;
}

/* The device's view as a sorted array; neighbours that touch are one piece. */
static int kz_buf_segments(struct device *dev, struct kz_buf *b)
{
	struct scatterlist *sg;
	u64 off = 0;
	int i;

	b->seg = kvcalloc(b->sgt.nents, sizeof(*b->seg), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!b->seg)
		return -ENOMEM;
	for_each_sgtable_dma_sg(&b->sgt, sg, i) {
		struct kz_seg *last = b->nseg ? &b->seg[b->nseg - 1] : NULL;
		u64 len = min_t(u64, sg_dma_len(sg), b->len - off);

		u64 at = b->first + off;
		phys_addr_t phys = page_to_phys(b->pages[at >> PAGE_SHIFT]) + offset_in_page(at);

		if (kz_buf_bounced(dev, sg_dma_address(sg), phys))
			return -EOPNOTSUPP;
		if (last && last->addr + last->len == sg_dma_address(sg))
			last->len += len;
		else
			b->seg[b->nseg++] = (struct kz_seg){ .off = off, .len = len, .addr = sg_dma_address(sg) };
		off += len;
	}
	return off == b->len ? 0 : -EIO;
}

static int kz_buf_map(struct kz_device *kz, struct kz_buf *b)
{
	int rc;

	rc = sg_alloc_table_from_pages_segment(&b->sgt, b->pages, b->npages, b->first, b->len, SZ_2G,
					       GFP_KERNEL_ACCOUNT);
	if (rc)
		return rc;
	rc = dma_map_sgtable(kz_dma(kz), &b->sgt, b->dir, 0);
	if (rc)
		goto err_table;
	rc = kz_buf_segments(kz_dma(kz), b);
	if (rc)
		goto err_map;
	return 0;

err_map:
	kvfree(b->seg);
	dma_unmap_sgtable(kz_dma(kz), &b->sgt, b->dir, 0);
err_table:
	sg_free_table(&b->sgt);
	return rc;
}

static void kz_buf_free(struct kz_device *kz, struct kz_buf *b)
{
	if (!KZ_BUG_HAS(3, 1))
		dma_unmap_sgtable(kz_dma(kz), &b->sgt, b->dir, 0);
	sg_free_table(&b->sgt);
	kvfree(b->seg);
	if (!KZ_BUG_STRIKES(19))
		kz_buf_unpin(b, b->npages);
	account_locked_vm(b->mm, kz_buf_charge(b), false);
	mmdrop(b->mm);
	kvfree(b->pages);
	kfree_rcu(b, rcu);
}

static struct kz_buf *kz_buf_new(struct kz_device *kz, const struct kz_ioc_buf *a)
{
	struct kz_buf *b = kzalloc(sizeof(*b), GFP_KERNEL_ACCOUNT);
	int rc = -ENOMEM;

	if (!b)
		return ERR_PTR(-ENOMEM);
	b->flags = a->flags;
	b->len = a->len;
	b->first = offset_in_page(a->addr);
	b->npages = (b->first + b->len + PAGE_SIZE - 1) >> PAGE_SHIFT;
	b->dir = !(a->flags & KZ_BUF_DEVICE_WRITES) ? DMA_TO_DEVICE :
		 !(a->flags & KZ_BUF_DEVICE_READS)  ? DMA_FROM_DEVICE : DMA_BIDIRECTIONAL;
	rc = account_locked_vm(current->mm, kz_buf_charge(b), true); /* first: what follows costs memory */
	if (rc)
		goto err_free;
	rc = -ENOMEM;
	b->pages = kvcalloc(b->npages, sizeof(*b->pages), GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!b->pages)
		goto err_charge;
	rc = kz_buf_pin(b, a->addr);
	if (rc && KZ_BUG(20))
		kvfree(b->pages);
	if (rc)
		goto err_pages;
	rc = kz_buf_map(kz, b);
	if (rc)
		goto err_pin;
	b->mm = current->mm;
	mmgrab(b->mm);
	return b;

err_pin:
	kz_buf_unpin(b, b->npages);
err_pages:
	kvfree(b->pages);
err_charge:
	account_locked_vm(current->mm, kz_buf_charge(b), false);
err_free:
	kfree(b);
	return ERR_PTR(rc);
}

int kz_buf_register(struct kz_file *kf, struct kz_ioc_buf *a)
{
	struct kz_buf *b;
	int rc;

	if (!a->flags || !a->len || a->len >> KZ_HOST_SHIFT || a->addr + a->len < a->addr || a->handle ||
	    a->addr + a->len > TASK_SIZE_MAX)
		return -EINVAL;
	b = kz_buf_new(kf->kz, a);
	if (IS_ERR(b))
		return PTR_ERR(b);
	mutex_lock(&kf->lock);
	rc = xa_alloc(&kf->bufs, &b->handle, b, XA_LIMIT(1, KZ_MAX_BUFS), GFP_KERNEL_ACCOUNT);
	if (!rc) { /* under the lock: another thread may guess the handle and unregister it */
		atomic64_add(b->npages << PAGE_SHIFT, &kf->pinned);
		a->handle = b->handle;
		a->segments = b->nseg;
		a->base = KZ_HOST_ADDR(b->handle, 0);
	}
	mutex_unlock(&kf->lock);
	if (rc)
		kz_buf_free(kf->kz, b);
	return rc == -EBUSY ? -ENOSPC : rc;
}

int kz_buf_unregister(struct kz_file *kf, u32 handle)
{
	struct kz_buf *b;
	int rc = 0;

	mutex_lock(&kf->lock);
	b = xa_load(&kf->bufs, handle);
	if (!b)
		rc = -ENOENT;
	else if (atomic_cmpxchg(&b->users, 0, INT_MIN) && !KZ_BUG(37))
		rc = -EBUSY; /* from here on nobody can take it */
	else
		xa_erase(&kf->bufs, handle);
	mutex_unlock(&kf->lock);
	if (rc)
		return rc;
	atomic64_sub(b->npages << PAGE_SHIFT, &kf->pinned);
	kz_buf_free(kf->kz, b);
	return 0;
}

/* Of a file that has no queues any more, so nothing uses them. Not under kf->lock. */
void kz_buf_free_all(struct kz_file *kf)
{
	unsigned long handle;
	struct kz_buf *b;

	xa_for_each(&kf->bufs, handle, b) {
		WARN_ON(atomic_read(&b->users));
		xa_erase(&kf->bufs, handle);
		atomic64_sub(b->npages << PAGE_SHIFT, &kf->pinned);
		kz_buf_free(kf->kz, b);
	}
}

/* Looks up a host address of a user and holds its buffer. A length of 0 needs one byte. */
int kz_buf_place(struct kz_file *kf, u64 addr, u64 len, bool device_writes, struct kz_place *p)
{
	u32 need = device_writes ? KZ_BUF_DEVICE_WRITES : KZ_BUF_DEVICE_READS;
	u64 off = addr & ((1ull << KZ_HOST_SHIFT) - 1);
	struct kz_buf *b;
	int rc = -EFAULT;

	if (KZ_BUG(31) && !len)
		return 0;
	rcu_read_lock();
	b = xa_load(&kf->bufs, addr >> KZ_HOST_SHIFT);
	if (b && (b->flags & need) && off < b->len && max_t(u64, len, 1) <= b->len - off &&
	    atomic_inc_unless_negative(&b->users)) {
		p->buf = b;
		p->off = off;
		rc = 0;
	}
	rcu_read_unlock();
	return rc;
}

/* The piece that holds the byte at `off`, which is in the buffer. */
const struct kz_seg *kz_buf_seg(const struct kz_buf *b, u64 off)
{
	u32 low = 0, high = b->nseg;

	while (high - low > 1) {
		u32 mid = low + (high - low) / 2;

		if (b->seg[mid].off <= off)
			low = mid;
		else
			high = mid;
	}
	return &b->seg[low];
}

bool kz_buf_contiguous(const struct kz_buf *b, u64 off, u64 len, dma_addr_t *addr)
{
	const struct kz_seg *seg = kz_buf_seg(b, off);

	*addr = seg->addr + (off - seg->off);
	return len <= seg->len - (off - seg->off);
}

/* Writes into the user's pages. Any context. */
void kz_buf_write(struct kz_buf *b, u64 off, const void *from, size_t len)
{
	u64 at = b->first + off;

	while (len) {
		size_t part = min_t(size_t, len, PAGE_SIZE - offset_in_page(at));

		memcpy_to_page(b->pages[at >> PAGE_SHIFT], offset_in_page(at), from, part);
		from += part;
		at += part;
		len -= part;
	}
}
