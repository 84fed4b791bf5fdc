// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * vnic: RDMA over Falcon for guests. The PCI device is the function itself (by
 * vfio-user), or QEMU's ivshmem-doorbell with the function's window. BAR 2 says
 * by its magic whether a vnic is behind it.
 */
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>

#include "vnic.h"

#define VNIC_PCI_VENDOR		0x1af4
#define VNIC_PCI_IVSHMEM	0x1110 /* QEMU's: it carries a window, and reaches no memory */
#define VNIC_PCI_FUNCTION	0x10f0 /* unless the host is told other ids (docs/attach.md) */

static void vnic_init(struct vnic_fn *fn)
{
	unsigned int i;

	spin_lock_init(&fn->bells.lock);
	mutex_init(&fn->lock);
	spin_lock_init(&fn->ib_lock);
	mutex_init(&fn->control.lock);
	spin_lock_init(&fn->control.reply_lock);
	init_completion(&fn->control.replied);
	spin_lock_init(&fn->admin.lock);
	sema_init(&fn->admin.room, VNIC_MAX_ADMIN_ENTRIES);
	for (i = 0; i < ARRAY_SIZE(fn->admin.commands); i++) {
		init_completion(&fn->admin.commands[i].done);
		fn->admin.commands[i].result_len = SIZE_MAX;
	}
	xa_init_flags(&fn->qps, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&fn->cqs, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&fn->srqs, XA_FLAGS_LOCK_IRQ);
	INIT_DELAYED_WORK(&fn->work, vnic_fn_work);
	INIT_WORK(&fn->loss, vnic_loss_work);
	INIT_WORK(&fn->flush, vnic_flush_work);
	INIT_WORK(&fn->bells.again, vnic_bells_work);
	spin_lock_init(&fn->life_lock);
	INIT_LIST_HEAD(&fn->kept);
	init_waitqueue_head(&fn->over);
	fn->life = 1;
	mutex_init(&fn->kernel_lock);
	INIT_LIST_HEAD(&fn->kernel_pds);
	INIT_LIST_HEAD(&fn->kernel_cqs);
	INIT_LIST_HEAD(&fn->kernel_qps);
	fn->lost = true; /* until a session is open */
}

/* Behind an ivshmem device the NIC takes guest-physical addresses. */
static bool vnic_beside_iommu(struct pci_dev *pdev)
{
	bool carrier = pdev->vendor == VNIC_PCI_VENDOR && pdev->device == VNIC_PCI_IVSHMEM;
	struct iommu_domain *domain = iommu_get_domain_for_dev(&pdev->dev);

	return carrier && domain && domain->type != IOMMU_DOMAIN_IDENTITY;
}

static int vnic_interrupts(struct vnic_fn *fn)
{
	struct pci_dev *pdev = fn->pdev;
	int got, err, i;

	/*
	 * Of MSI a kernel without interrupt remapping gives one. Completion queues
	 * then have no event queue, and their events come as control messages.
	 */
	got = pci_alloc_irq_vectors(pdev, 1, 1 + fn->num_event_queues,
				    PCI_IRQ_MSIX | PCI_IRQ_MSI);
	if (got < 0) {
		dev_err(&pdev->dev, "%u interrupt vectors are needed: start QEMU as vnic qemu says\n",
			1 + fn->num_event_queues);
		return got;
	}
	fn->num_event_queues = got - 1;
	err = request_threaded_irq(pci_irq_vector(pdev, 0), vnic_control_irq,
				   vnic_control_messages, IRQF_ONESHOT, "vnic-control", fn);
	if (err)
		goto vectors;
	for (i = 0; i < fn->num_event_queues; i++) {
		err = request_irq(pci_irq_vector(pdev, 1 + i), vnic_events, 0, "vnic-events",
				  &fn->event_queues[i]);
		if (err)
			goto irqs;
	}
	return 0;
irqs:
	while (--i >= 0)
		free_irq(pci_irq_vector(pdev, 1 + i), &fn->event_queues[i]);
	free_irq(pci_irq_vector(pdev, 0), fn);
vectors:
	pci_free_irq_vectors(pdev);
	return err;
}

static void vnic_free_interrupts(struct vnic_fn *fn)
{
	unsigned int i;

	for (i = 0; i < fn->num_event_queues; i++)
		free_irq(pci_irq_vector(fn->pdev, 1 + i), &fn->event_queues[i]);
	free_irq(pci_irq_vector(fn->pdev, 0), fn);
	pci_free_irq_vectors(fn->pdev);
}

static void vnic_destroy_workqueues(struct vnic_fn *fn)
{
	if (fn->wq)
		destroy_workqueue(fn->wq);
	if (fn->loss_wq)
		destroy_workqueue(fn->loss_wq);
}

static int vnic_start(struct vnic_fn *fn)
{
	int err;

	err = dma_set_mask_and_coherent(&fn->pdev->dev, DMA_BIT_MASK(64));
	if (err)
		return err;
	/* Page lists say where memory is: a segment may be as long as it likes. */
	dma_set_max_seg_size(&fn->pdev->dev, UINT_MAX);
	if (vnic_beside_iommu(fn->pdev)) {
		dev_err(&fn->pdev->dev,
			"an IOMMU translates this device's addresses, the NIC takes physical ones: boot with iommu=pt\n");
		return -EOPNOTSUPP;
	}
	fn->wq = alloc_ordered_workqueue("vnic", WQ_MEM_RECLAIM);
	fn->loss_wq = alloc_workqueue("vnic-loss", WQ_MEM_RECLAIM, 0);
	err = -ENOMEM;
	if (!fn->wq || !fn->loss_wq)
		goto wq;
	pci_set_master(fn->pdev);
	err = vnic_interrupts(fn);
	if (err)
		goto wq;
	fn->netdev_nb.notifier_call = vnic_netdev_event;
	err = register_netdevice_notifier(&fn->netdev_nb);
	if (err)
		goto irqs;
	vnic_fn_kick(fn);
	return 0;
irqs:
	vnic_free_interrupts(fn);
wq:
	vnic_destroy_workqueues(fn);
	return err;
}

static int vnic_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct vnic_fn *fn;
	int err;

	err = pci_enable_device(pdev);
	if (err)
		return err;
	err = pci_request_regions(pdev, "vnic");
	if (err)
		goto disable;
	fn = kvzalloc(sizeof(*fn), GFP_KERNEL);
	if (!fn) {
		err = -ENOMEM;
		goto regions;
	}
	fn->pdev = pdev;
	fn->window_len = pci_resource_len(pdev, 2);
	fn->bar0 = pci_iomap(pdev, 0, 0);
	/* Memory of the host, not registers. */
	fn->window = memremap(pci_resource_start(pdev, 2), fn->window_len, MEMREMAP_WB);
	if (!fn->bar0 || !fn->window) {
		err = -ENOMEM;
		goto unmap;
	}
	vnic_init(fn);
	err = vnic_window_open(fn);
	if (!err)
		err = vnic_start(fn);
	if (err)
		goto unmap;
	pci_set_drvdata(pdev, fn);
	return 0;
unmap:
	if (fn->window)
		memunmap(fn->window);
	if (fn->bar0)
		pci_iounmap(pdev, fn->bar0);
	kvfree(fn);
regions:
	pci_release_regions(pdev);
disable:
	pci_disable_device(pdev);
	return err;
}

static void vnic_remove(struct pci_dev *pdev)
{
	struct vnic_fn *fn = pci_get_drvdata(pdev);

	WRITE_ONCE(fn->stopping, true);
	unregister_netdevice_notifier(&fn->netdev_nb);
	cancel_delayed_work_sync(&fn->work);
	mutex_lock(&fn->lock);
	vnic_fn_down(fn, "the driver leaves the function");
	mutex_unlock(&fn->lock);
	vnic_free_interrupts(fn);
	vnic_destroy_workqueues(fn);
	vnic_leak(fn);
	xa_destroy(&fn->qps);
	xa_destroy(&fn->cqs);
	xa_destroy(&fn->srqs);
	memunmap(fn->window);
	pci_iounmap(pdev, fn->bar0);
	kvfree(fn);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
}

/* The machine goes down: the device is to touch no memory any more. */
static void vnic_shutdown(struct pci_dev *pdev)
{
	struct vnic_fn *fn = pci_get_drvdata(pdev);

	WRITE_ONCE(fn->stopping, true);
	cancel_delayed_work_sync(&fn->work);
	vnic_fn_leave(fn);
}

/* A function level reset, of sysfs for one: the session ends before it (DRV-1104). */
static void vnic_reset_prepare(struct pci_dev *pdev)
{
	struct vnic_fn *fn = pci_get_drvdata(pdev);

	WRITE_ONCE(fn->stopping, true);
	cancel_delayed_work_sync(&fn->work);
	mutex_lock(&fn->lock);
	vnic_fn_down(fn, "the function is reset");
	mutex_unlock(&fn->lock);
}

/* The function begins anew, with another session. */
static void vnic_reset_done(struct pci_dev *pdev)
{
	struct vnic_fn *fn = pci_get_drvdata(pdev);

	WRITE_ONCE(fn->stopping, false);
	vnic_fn_kick(fn);
}

static const struct pci_error_handlers vnic_err_handlers = {
	.reset_prepare = vnic_reset_prepare,
	.reset_done = vnic_reset_done,
};

static const struct pci_device_id vnic_ids[] = {
	{ PCI_DEVICE(VNIC_PCI_VENDOR, VNIC_PCI_IVSHMEM) },
	{ PCI_DEVICE(VNIC_PCI_VENDOR, VNIC_PCI_FUNCTION) },
	{ }
};
MODULE_DEVICE_TABLE(pci, vnic_ids);

static struct pci_driver vnic_driver = {
	.name = "vnic",
	.id_table = vnic_ids,
	.probe = vnic_probe,
	.remove = vnic_remove,
	.shutdown = vnic_shutdown,
	.err_handler = &vnic_err_handlers,
};
module_pci_driver(vnic_driver);

MODULE_DESCRIPTION("RDMA over Falcon: guest driver of the vnic device");
MODULE_AUTHOR("The vnic authors");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_VERSION("2.0");
