// SPDX-License-Identifier: GPL-2.0
/* Interrupt vectors: one a queue where there are enough, else shared by queue number modulo vectors. */
#include <linux/interrupt.h>

#include "kz.h"

static irqreturn_t kz_irq(int irq, void *arg)
{
	struct kz_irqvec *v = arg;
	struct kz_device *kz = v->kz;
	struct kz_queue *only = NULL;
	unsigned int found = 0, live = 0, id;

	v->count++;
	rcu_read_lock();
	for (id = v->index; id < kz->nqueues; id += kz->nvectors) {
		struct kz_queue *q = rcu_dereference(kz->hwq[id]);

		if (!q)
			continue;
		only = q;
		live++;
		found += kz_ring_poll(q, KZ_POLL_IRQ);
	}
	if (!found && live == 1)
		kz_ring_idle_irq(only);
	rcu_read_unlock();
	return IRQ_HANDLED;
}

static void kz_irq_free(struct kz_device *kz, unsigned int n)
{
	while (n--) {
		if (KZ_BUG_IS(2, 1) && n == kz->nvectors - 1)
			continue;
		free_irq(kz->vec[n].irq, &kz->vec[n]);
	}
}

static int kz_irq_request(struct kz_device *kz)
{
	unsigned int i;
	int rc;

	for (i = 0; i < kz->nvectors; i++) {
		struct kz_irqvec *v = &kz->vec[i];

		v->kz = kz;
		v->index = i;
		v->irq = pci_irq_vector(kz->pdev, i);
		snprintf(v->name, sizeof(v->name), KZ_NODE "%d-%u", kz->id, i);
		rc = request_irq(v->irq, kz_irq, 0, v->name, v);
		if (rc) {
			kz_irq_free(kz, i);
			return rc;
		}
	}
	return 0;
}

int kz_irq_init(struct kz_device *kz, unsigned int most)
{
	int n, rc;

	n = pci_alloc_irq_vectors(kz->pdev, 1, min_t(unsigned int, most, kz->nqueues), PCI_IRQ_MSIX | PCI_IRQ_MSI);
	if (n < 0) {
		dev_err(kz_dma(kz), "no interrupt vectors: %d\n", n);
		return n;
	}
	kz->nvectors = n;
	kz->vec = kcalloc(n, sizeof(*kz->vec), GFP_KERNEL);
	if (!kz->vec) {
		rc = -ENOMEM;
		goto err_vectors;
	}
	rc = kz_irq_request(kz);
	if (rc)
		goto err_free;
	return 0;

err_free:
	kfree(kz->vec);
err_vectors:
	pci_free_irq_vectors(kz->pdev);
	return rc;
}

void kz_irq_exit(struct kz_device *kz)
{
	kz_irq_free(kz, kz->nvectors);
	kfree(kz->vec);
	if (!KZ_BUG_IS(2, 2))
		pci_free_irq_vectors(kz->pdev);
}
