// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * vnic: RDMA over Falcon for guests. The PCI device is the function itself (by vfio-user).
 *
 * Where QEMU has no vfio-user, the function's window is the shared memory of QEMU's
 * ivshmem-doorbell device. Other people use the id of that device, too, so the driver does not
 * bind it by itself: new_id or driver_override of sysfs tells it to. It then takes a device only
 * if its shared memory begins as a window does.
 */
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>

#include "vnic.h"

#define VNIC_PCI_VENDOR		0x1af4
#define VNIC_PCI_FUNCTION	0x10f0 /* unless the host is configured with other ids */
#define VNIC_PCI_IVSHMEM	0x1110

static void vnic_init(struct vnic_fn *fn)
{
	unsigned int i;

	fn->handlers = &vnic_handlers;
	spin_lock_init(&fn->bells.lock);
	mutex_init(&fn->lock);
	spin_lock_init(&fn->ib_lock);
	mutex_init(&fn->control.lock);
	spin_lock_init(&fn->control.reply_lock);
	init_completion(&fn->control.replied);
	spin_lock_init(&fn->admin.lock);
	sema_init(&fn->admin.room, VNIC_MAX_ADMIN_ENTRIES);
	for (i = 0; i < ARRAY_SIZE(fn->admin.commands); i++)
		init_completion(&fn->admin.commands[i].done);
	xa_init_flags(&fn->qps, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&fn->cqs, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&fn->srqs, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&fn->iw_listeners, XA_FLAGS_LOCK_IRQ); /* to lockdep it is one of those */
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

/* The NIC cannot know what an IOMMU does to the addresses of an ivshmem device. */
static bool vnic_behind_iommu(struct pci_dev *pdev)
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
	 * A kernel without interrupt remapping gives one vector of MSI. Completion queues
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
		goto err_vectors;
	for (i = 0; i < fn->num_event_queues; i++) {
		err = request_irq(pci_irq_vector(pdev, 1 + i), vnic_events, 0, "vnic-events",
				  &fn->event_queues[i]);
		if (err)
			goto err_irqs;
	}
	return 0;

err_irqs:
	while (--i >= 0)
		free_irq(pci_irq_vector(pdev, 1 + i), &fn->event_queues[i]);
	free_irq(pci_irq_vector(pdev, 0), fn);
err_vectors:
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

static int vnic_start(struct vnic_fn *fn)
{
	struct device *dev = &fn->pdev->dev;
	int err;

	err = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(64));
	if (err)
		return err;
	/* The device reads page lists: a segment may have any length. */
	dma_set_max_seg_size(dev, UINT_MAX);
	if (vnic_behind_iommu(fn->pdev)) {
		dev_err(dev, "an IOMMU translates this device's addresses, the NIC takes physical ones: boot with iommu=pt\n");
		return -EOPNOTSUPP;
	}
	fn->wq = alloc_ordered_workqueue("vnic", WQ_MEM_RECLAIM);
	if (!fn->wq)
		return -ENOMEM;
	fn->loss_wq = alloc_workqueue("vnic-loss", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	if (!fn->loss_wq) {
		err = -ENOMEM;
		goto err_wq;
	}
	pci_set_master(fn->pdev);
	err = vnic_interrupts(fn);
	if (err)
		goto err_loss_wq;
	fn->netdev_nb.notifier_call = vnic_netdev_event;
	err = register_netdevice_notifier(&fn->netdev_nb);
	if (err)
		goto err_irqs;
	vnic_fn_kick(fn);
	return 0;

err_irqs:
	vnic_free_interrupts(fn);
err_loss_wq:
	destroy_workqueue(fn->loss_wq);
err_wq:
	destroy_workqueue(fn->wq);
	return err;
}

static int vnic_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct vnic_fn *fn;
	int err;

	err = pci_enable_device(pdev);
	if (err)
		return err;
	if (!vnic_window_is_ours(pdev)) {
		err = -ENODEV;
		goto err_disable;
	}
	err = pci_request_regions(pdev, "vnic");
	if (err)
		goto err_disable;
	fn = kvzalloc_obj(*fn);
	if (!fn) {
		err = -ENOMEM;
		goto err_regions;
	}
	fn->pdev = pdev;
	vnic_init(fn);
	fn->bar0 = pci_iomap(pdev, 0, 0);
	if (!fn->bar0) {
		err = -ENOMEM;
		goto err_fn;
	}
	/* The window is memory of the host, and not registers. */
	fn->window_len = pci_resource_len(pdev, 2);
	fn->window = memremap(pci_resource_start(pdev, 2), fn->window_len, MEMREMAP_WB);
	if (!fn->window) {
		err = -ENOMEM;
		goto err_bar0;
	}
	err = vnic_window_open(fn);
	if (err)
		goto err_window;
	pci_set_drvdata(pdev, fn);
	err = vnic_start(fn);
	if (err)
		goto err_window;
	return 0;

err_window:
	memunmap(fn->window);
err_bar0:
	pci_iounmap(pdev, fn->bar0);
err_fn:
	kvfree(fn);
err_regions:
	pci_release_regions(pdev);
err_disable:
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
	destroy_workqueue(fn->wq);
	destroy_workqueue(fn->loss_wq);
	vnic_leak(fn);
	xa_destroy(&fn->qps);
	xa_destroy(&fn->cqs);
	xa_destroy(&fn->srqs);
	xa_destroy(&fn->iw_listeners);
	memunmap(fn->window);
	pci_iounmap(pdev, fn->bar0);
	kvfree(fn);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
}

/* The machine is halted or restarted: the device must not write to memory after that. */
static void vnic_shutdown(struct pci_dev *pdev)
{
	struct vnic_fn *fn = pci_get_drvdata(pdev);

	WRITE_ONCE(fn->stopping, true);
	cancel_delayed_work_sync(&fn->work);
	vnic_fn_leave(fn);
}

/* A function level reset, by sysfs for one. The session ends before it (DRV-1104). */
static void vnic_reset_prepare(struct pci_dev *pdev)
{
	struct vnic_fn *fn = pci_get_drvdata(pdev);

	WRITE_ONCE(fn->stopping, true);
	cancel_delayed_work_sync(&fn->work);
	mutex_lock(&fn->lock);
	vnic_fn_down(fn, "the function is reset");
	mutex_unlock(&fn->lock);
}

/* After the reset another session begins. */
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
