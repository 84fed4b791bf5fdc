// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The Ethernet interface of a function, and the ib_device that belongs to it.
 *
 * The interface is the one whose permanent MAC address is the function's, in any network
 * namespace. It remains so when its name, MAC address or namespace change, and when other
 * interfaces are put on it. The ib_device is unregistered when the interface is, or when the
 * NIC gives the function another MAC address or transport.
 */
#include <linux/etherdevice.h>
#include <linux/if_arp.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <linux/rwsem.h>
#include <net/net_namespace.h>

#include "vnic.h"

/* Whether an interface is registered; it is while it is moved between namespaces. */
static bool vnic_netdev_there(const struct net_device *dev)
{
	return READ_ONCE(dev->reg_state) == NETREG_REGISTERED;
}

/*
 * The current address counts for an interface that has no permanent one. Interfaces without
 * a parent device are left out: bridges, bonds and VLANs have the addresses of others.
 */
static bool vnic_netdev_fits(const struct vnic_fn *fn, const struct net_device *dev)
{
	const u8 *mac = is_zero_ether_addr(dev->perm_addr) ? dev->dev_addr : dev->perm_addr;

	return dev->dev.parent && dev->type == ARPHRD_ETHER && vnic_netdev_there(dev) &&
	       ether_addr_equal(mac, fn->mac);
}

/* The function's interface, held. */
static struct net_device *vnic_find_netdev(struct vnic_fn *fn)
{
	struct net_device *dev;
	struct net *net;

	rtnl_lock();
	down_read(&net_rwsem);
	for_each_net(net) {
		for_each_netdev(net, dev) {
			if (vnic_netdev_fits(fn, dev)) {
				dev_hold(dev);
				goto out;
			}
		}
	}
	dev = NULL;
out:
	up_read(&net_rwsem);
	rtnl_unlock();
	return dev;
}

static void vnic_set_ib(struct vnic_fn *fn, struct vnic_ibdev *ib)
{
	unsigned long flags;

	spin_lock_irqsave(&fn->ib_lock, flags);
	fn->ib = ib;
	spin_unlock_irqrestore(&fn->ib_lock, flags);
}

/* Unregisters the ib_device, if there is one. Programs get IBV_EVENT_DEVICE_FATAL. */
void vnic_netdev_part(struct vnic_fn *fn, const char *why)
{
	struct vnic_ibdev *ib = fn->ib;

	if (!ib)
		return;
	ibdev_info(&ib->ibdev, "RDMA device %s goes: %s\n", dev_name(&ib->ibdev.dev), why);
	vnic_set_ib(fn, NULL);
	vnic_ib_unregister(ib);
	WRITE_ONCE(fn->netdev, NULL); /* the ib_device held it */
}

static void vnic_netdev_join(struct vnic_fn *fn)
{
	struct net_device *dev = vnic_find_netdev(fn);
	struct vnic_ibdev *ib;

	if (!dev) {
		dev_info(&fn->pdev->dev,
			 "no interface has the permanent MAC address %pM: RDMA waits for one\n",
			 fn->mac);
		return;
	}
	WRITE_ONCE(fn->netdev, dev);
	ether_addr_copy(fn->netdev_mac, fn->mac);
	ib = vnic_ib_register(fn, dev);
	if (IS_ERR(ib)) {
		dev_err(&fn->pdev->dev, "no RDMA device beside %s: error %ld\n",
			netdev_name(dev), PTR_ERR(ib));
		WRITE_ONCE(fn->netdev, NULL);
	} else {
		vnic_set_ib(fn, ib);
		ibdev_info(&ib->ibdev, "RDMA device %s comes, beside %s\n",
			   dev_name(&ib->ibdev.dev), netdev_name(dev));
	}
	dev_put(dev);
}

/*
 * Releases an interface that is being unregistered. The kernel waits for that, so this must not
 * wait for the NIC.
 */
void vnic_netdev_gone(struct vnic_fn *fn)
{
	if (fn->ib && !vnic_netdev_there(fn->netdev))
		vnic_netdev_part(fn, "its interface was removed");
}

/* Unregisters the ib_device if the function has changed while it was down. */
void vnic_netdev_check(struct vnic_fn *fn)
{
	if (fn->ib && !ether_addr_equal(fn->netdev_mac, fn->mac))
		vnic_netdev_part(fn, "the NIC gave the function another MAC address");
	if (fn->ib && vnic_is_iwarp(&fn->ib->ibdev) != !!(fn->features & VNIC_FEATURE_IWARP))
		vnic_netdev_part(fn, "the NIC gave the function another transport");
}

/* Registers the ib_device of a function that is up, if its interface is there. */
void vnic_netdev_follow(struct vnic_fn *fn)
{
	if (!fn->ib)
		vnic_netdev_join(fn);
}

/* Events of interfaces, in all network namespaces. */
int vnic_netdev_event(struct notifier_block *nb, unsigned long event, void *ptr)
{
	struct vnic_fn *fn = container_of(nb, struct vnic_fn, netdev_nb);
	struct net_device *dev = netdev_notifier_info_to_dev(ptr);
	bool ours = dev == READ_ONCE(fn->netdev);

	switch (event) {
	case NETDEV_CHANGEADDR:
		if (ours && fn->features & VNIC_FEATURE_IWARP)
			vnic_ib_event(fn, IB_EVENT_GID_CHANGE); /* the GID is the address */
		fallthrough;
	case NETDEV_REGISTER:
		if (!READ_ONCE(fn->netdev) && vnic_netdev_fits(fn, dev))
			vnic_fn_kick(fn);
		break;
	case NETDEV_UNREGISTER:
		if (ours && !vnic_netdev_there(dev))
			vnic_fn_kick(fn);
		break;
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		if (ours)
			vnic_ib_event(fn, netif_oper_up(dev) ? IB_EVENT_PORT_ACTIVE :
							       IB_EVENT_PORT_ERR);
		break;
	}
	return NOTIFY_DONE;
}
