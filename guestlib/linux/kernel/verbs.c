// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The ib_device: what it is, its port, contexts and protection domains. */
#include <linux/etherdevice.h>
#include <linux/netdevice.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/iw_cm.h>

#include "vnic.h"

/* Adds the device's clock for a program that has room for it in the answer. */
static int vnic_tell_clock(struct vnic_fn *fn, struct ib_udata *udata)
{
	struct vnic_device_resp resp = {};
	u64 clock;
	int err;

	if (!udata || udata->outlen < sizeof(resp))
		return 0;
	err = vnic_reg_read(fn, VNIC_REG_CLOCK, 8, &clock);
	if (err)
		return err;
	resp.clock = clock;
	return ib_copy_to_udata(udata, &resp, sizeof(resp));
}

static int vnic_query_device(struct ib_device *ibdev, struct ib_device_attr *attr,
			     struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibdev);
	const struct vnic_query_device_result *l = &fn->limits;

	memset(attr, 0, sizeof(*attr));
	attr->fw_ver = (u64)VNIC_VERSION_MAJOR << 32 | VNIC_VERSION_MINOR;
	attr->sys_image_guid = cpu_to_be64(le64_to_cpu(l->node_guid));
	attr->max_mr_size = le64_to_cpu(l->max_mr_size);
	attr->page_size_cap = VNIC_PAGE_SIZES;
	attr->vendor_id = fn->pdev->vendor;
	attr->vendor_part_id = fn->pdev->device;
	attr->hw_ver = VNIC_VERSION_MAJOR;
	attr->max_qp = le32_to_cpu(l->max_qp);
	attr->max_qp_wr = le32_to_cpu(l->max_qp_entries);
	attr->device_cap_flags = IB_DEVICE_CURR_QP_STATE_MOD | IB_DEVICE_SYS_IMAGE_GUID |
				 IB_DEVICE_PORT_ACTIVE_EVENT | IB_DEVICE_SRQ_RESIZE |
				 IB_DEVICE_MEM_WINDOW | IB_DEVICE_MEM_WINDOW_TYPE_2B |
				 IB_DEVICE_MEM_MGT_EXTENSIONS;
	if (!vnic_is_iwarp(ibdev))
		attr->device_cap_flags |= IB_DEVICE_RC_RNR_NAK_GEN | IB_DEVICE_XRC;
	attr->kernel_cap_flags = IBK_LOCAL_DMA_LKEY;
	attr->max_send_sge = le16_to_cpu(l->max_sge);
	attr->max_recv_sge = le16_to_cpu(l->max_sge);
	attr->max_sge_rd = le16_to_cpu(l->max_sge);
	attr->max_cq = le32_to_cpu(l->max_cq);
	attr->max_cqe = le32_to_cpu(l->max_cq_entries);
	attr->max_mr = le32_to_cpu(l->max_mr);
	attr->max_pd = le32_to_cpu(l->max_pd);
	attr->max_qp_rd_atom = l->max_read_atomic;
	attr->max_qp_init_rd_atom = l->max_read_atomic;
	attr->max_res_rd_atom = min_t(u64, (u64)l->max_read_atomic * attr->max_qp, INT_MAX);
	attr->atomic_cap = IB_ATOMIC_GLOB;
	attr->masked_atomic_cap = IB_ATOMIC_GLOB;
	attr->max_mw = le32_to_cpu(fn->counts.mws);
	attr->max_srq = le32_to_cpu(fn->counts.srqs);
	attr->max_srq_wr = attr->max_qp_wr;
	attr->max_srq_sge = attr->max_recv_sge;
	attr->max_fast_reg_page_list_len = VNIC_PAGE_LIST_ENTRIES;
	if (!vnic_is_iwarp(ibdev)) { /* datagrams */
		attr->max_ah = le32_to_cpu(fn->counts.ahs);
		attr->max_mcast_grp = le32_to_cpu(fn->counts.mcgs);
		attr->max_mcast_qp_attach = attr->max_mcast_grp;
		attr->max_total_mcast_qp_attach = attr->max_mcast_grp;
		attr->max_pkeys = 1;
	}
	attr->max_dm_size = VNIC_MAX_DM_SIZE;
	attr->local_ca_ack_delay = 15;
	attr->timestamp_mask = U64_MAX;
	attr->hca_core_clock = 1000000; /* kHz: the clock counts nanoseconds */
	attr->cq_caps.max_cq_moderation_count = U16_MAX;
	attr->cq_caps.max_cq_moderation_period = U16_MAX;
	return vnic_tell_clock(fn, udata);
}

/* The widths and speeds of InfiniBand, slowest first. */
static const struct vnic_speed {
	u32 mbps;
	u8 width;
	u8 speed;
} vnic_speeds[] = {
	{ 2500, IB_WIDTH_1X, IB_SPEED_SDR },	{ 5000, IB_WIDTH_1X, IB_SPEED_DDR },
	{ 10000, IB_WIDTH_1X, IB_SPEED_FDR10 }, { 14000, IB_WIDTH_1X, IB_SPEED_FDR },
	{ 25000, IB_WIDTH_1X, IB_SPEED_EDR },	{ 40000, IB_WIDTH_4X, IB_SPEED_FDR10 },
	{ 50000, IB_WIDTH_2X, IB_SPEED_EDR },	{ 100000, IB_WIDTH_4X, IB_SPEED_EDR },
	{ 200000, IB_WIDTH_4X, IB_SPEED_HDR },	{ 400000, IB_WIDTH_4X, IB_SPEED_NDR },
	{ 800000, IB_WIDTH_8X, IB_SPEED_NDR },	{ U32_MAX, IB_WIDTH_12X, IB_SPEED_NDR },
};

/*
 * Reports the slowest link that is at least as fast as the port. The register is read each time,
 * since no event reports a change of the rate. While the NIC is lost, the last rate is reported.
 */
static void vnic_port_speed(struct vnic_fn *fn, struct ib_port_attr *attr)
{
	const struct vnic_speed *s = vnic_speeds;
	u64 mbps;

	if (!vnic_reg_read(fn, VNIC_REG_SPEED, 4, &mbps))
		WRITE_ONCE(fn->speed, mbps);
	while (s->mbps < READ_ONCE(fn->speed))
		s++;
	attr->active_width = s->width;
	attr->active_speed = s->speed;
}

static int vnic_query_port(struct ib_device *ibdev, u32 port, struct ib_port_attr *attr)
{
	struct vnic_fn *fn = to_fn(ibdev);
	struct net_device *netdev = fn->netdev;
	int mtu;

	attr->state = fn->link_up && !READ_ONCE(fn->lost) && netif_running(netdev) &&
		      netif_carrier_ok(netdev) ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = attr->state == IB_PORT_ACTIVE ? IB_PORT_PHYS_STATE_LINK_UP :
							   IB_PORT_PHYS_STATE_DISABLED;
	mtu = ib_mtu_int_to_enum(fn->mtu);
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = mtu;
	attr->phys_mtu = fn->mtu;
	attr->port_cap_flags = IB_PORT_CM_SUP | IB_PORT_REINIT_SUP | IB_PORT_DEVICE_MGMT_SUP |
			       IB_PORT_VENDOR_CLASS_SUP;
	attr->max_msg_sz = 1U << 31;
	if (vnic_is_iwarp(ibdev)) {
		attr->gid_tbl_len = 1;
	} else {
		attr->gid_tbl_len = VNIC_GID_ENTRIES;
		attr->ip_gids = true;
		attr->pkey_tbl_len = 1;
	}
	vnic_port_speed(fn, attr);
	return 0;
}

static int vnic_query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = VNIC_DEFAULT_PKEY;
	return 0;
}

static int vnic_port_immutable(struct ib_device *ibdev, u32 port, struct ib_port_immutable *im)
{
	struct ib_port_attr attr;
	int err;

	im->core_cap_flags = vnic_is_iwarp(ibdev) ? RDMA_CORE_PORT_IWARP :
						    RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	err = ib_query_port(ibdev, port, &attr);
	if (err)
		return err;
	im->pkey_tbl_len = attr.pkey_tbl_len;
	im->gid_tbl_len = attr.gid_tbl_len;
	im->max_mad_size = vnic_is_iwarp(ibdev) ? 0 : IB_MGMT_MAD_SIZE;
	return 0;
}

/* Over iWARP the one GID is the MAC address, by which rdma_cm finds the device. */
static int vnic_query_gid(struct ib_device *ibdev, u32 port, int index, union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	ether_addr_copy(gid->raw, to_fn(ibdev)->netdev->dev_addr);
	return 0;
}

static enum rdma_link_layer vnic_link_layer(struct ib_device *ibdev, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static void vnic_fw_str(struct ib_device *ibdev, char *str)
{
	snprintf(str, IB_FW_VERSION_NAME_MAX, "%u.%u", VNIC_VERSION_MAJOR, VNIC_VERSION_MINOR);
}

static int vnic_alloc_ucontext(struct ib_ucontext *uctx, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(uctx->device);
	struct vnic_ucontext_resp resp;

	vnic_tell_limits(fn, &resp);
	container_of(uctx, struct vnic_ucontext, ibucontext)->life = READ_ONCE(fn->life);
	if (READ_ONCE(fn->lost))
		return -EIO;
	if (udata->outlen < sizeof(resp))
		return -EINVAL;
	return ib_copy_to_udata(udata, &resp, sizeof(resp));
}

static void vnic_dealloc_ucontext(struct ib_ucontext *uctx)
{
}

/* Mapped queues are ordinary memory, and stay mapped after the device is unregistered. */
static void vnic_disassociate(struct ib_ucontext *uctx)
{
}

static int vnic_pd_forget(struct vnic_fn *fn, struct vnic_pd *pd)
{
	struct vnic_dealloc_pd p = { .pdn = cpu_to_le32(pd->pdn) };

	return vnic_destroy(fn, pd->life, VNIC_ADMIN_OP_DEALLOC_PD, &p, sizeof(p));
}

static int vnic_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(pd->device);
	int err;

	if (!rdma_is_kernel_res(&pd->res))
		return vnic_pd_forget(fn, to_vpd(pd));
	mutex_lock(&fn->kernel_lock);
	err = vnic_pd_forget(fn, to_vpd(pd));
	if (!err)
		list_del(&to_vpd(pd)->kernel);
	mutex_unlock(&fn->kernel_lock);
	return err;
}

/* Makes the device's part of a protection domain. */
int vnic_pd_make(struct vnic_fn *fn, struct vnic_pd *pd)
{
	struct vnic_alloc_pd_result r;
	int err = vnic_command_in(fn, pd->life, VNIC_ADMIN_OP_ALLOC_PD, NULL, 0, &r, sizeof(r));

	if (!err)
		pd->pdn = le32_to_cpu(r.pdn);
	return err;
}

/* Makes a domain of the kernel, which recover.c makes again after a loss. */
static int vnic_pd_make_kernel(struct vnic_fn *fn, struct vnic_pd *pd)
{
	int err;

	mutex_lock(&fn->kernel_lock);
	pd->life = READ_ONCE(fn->life);
	err = vnic_pd_make(fn, pd);
	if (!err)
		list_add_tail(&pd->kernel, &fn->kernel_pds);
	mutex_unlock(&fn->kernel_lock);
	return err;
}

static int vnic_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibpd->device);
	struct vnic_pd *pd = to_vpd(ibpd);
	struct vnic_pd_resp resp = {};
	int err;

	if (!udata)
		return vnic_pd_make_kernel(fn, pd);
	pd->life = vnic_life(fn, udata);
	err = vnic_pd_make(fn, pd);
	if (err)
		return err;
	resp.pdn = pd->pdn;
	err = ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen));
	if (err)
		vnic_pd_forget(fn, pd);
	return err;
}

/* The name of the driver, by which the provider finds its devices. */
static ssize_t hca_type_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "vnic\n");
}
static DEVICE_ATTR_RO(hca_type);

static ssize_t function_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	struct vnic_ibdev *v = rdma_device_to_drv_device(dev, struct vnic_ibdev, ibdev);

	return sysfs_emit(buf, "%#x\n", v->fn->number);
}
static DEVICE_ATTR_RO(function);

static struct attribute *vnic_attrs[] = {
	&dev_attr_hca_type.attr,
	&dev_attr_function.attr,
	NULL
};

static const struct attribute_group vnic_attr_group = { .attrs = vnic_attrs };

static const struct ib_device_ops vnic_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_VNIC,
	.uverbs_abi_ver = VNIC_USER_ABI_VERSION,
	.device_group = &vnic_attr_group,

	.alloc_dm = vnic_alloc_dm,
	.alloc_hw_port_stats = vnic_alloc_hw_port_stats,
	.alloc_mr = vnic_alloc_mr,
	.alloc_mw = vnic_alloc_mw,
	.alloc_pd = vnic_alloc_pd,
	.alloc_ucontext = vnic_alloc_ucontext,
	.create_cq = vnic_compat_create_cq,
	.create_qp = vnic_create_qp,
	.create_srq = vnic_create_srq,
	.dealloc_dm = vnic_dealloc_dm,
	.dealloc_mw = vnic_dealloc_mw,
	.dealloc_pd = vnic_dealloc_pd,
	.dealloc_ucontext = vnic_dealloc_ucontext,
	.dereg_mr = vnic_dereg_mr,
	.destroy_cq = vnic_destroy_cq,
	.destroy_qp = vnic_destroy_qp,
	.destroy_srq = vnic_destroy_srq,
	.disassociate_ucontext = vnic_disassociate,
	.get_dev_fw_str = vnic_fw_str,
	.get_dma_mr = vnic_get_dma_mr,
	.get_hw_stats = vnic_get_hw_stats,
	.get_link_layer = vnic_link_layer,
	.get_port_immutable = vnic_port_immutable,
	.map_mr_sg = vnic_map_mr_sg,
	.mmap = vnic_mmap,
	.mmap_free = vnic_mmap_free,
	.modify_cq = vnic_modify_cq,
	.modify_qp = vnic_modify_qp,
	.modify_srq = vnic_modify_srq,
	.poll_cq = vnic_poll_cq,
	.post_recv = vnic_post_recv,
	.post_send = vnic_post_send,
	.post_srq_recv = vnic_post_srq_recv,
	.query_device = vnic_query_device,
	.query_port = vnic_query_port,
	.query_qp = vnic_query_qp,
	.query_srq = vnic_query_srq,
	.query_ucontext = vnic_query_ucontext,
	.reg_dm_mr = vnic_reg_dm_mr,
	.reg_user_mr = vnic_compat_reg_user_mr,
	.req_notify_cq = vnic_req_notify_cq,
	.rereg_user_mr = vnic_rereg_user_mr,
	.resize_user_cq = vnic_compat_resize_cq,

	INIT_RDMA_OBJ_SIZE(ib_cq, vnic_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_mw, vnic_mw, ibmw),
	INIT_RDMA_OBJ_SIZE(ib_pd, vnic_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_qp, vnic_qp, ibqp),
	INIT_RDMA_OBJ_SIZE(ib_srq, vnic_srq, ibsrq),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, vnic_ucontext, ibucontext),
};

static const struct ib_device_ops vnic_roce_ops = {
	.add_gid = vnic_add_gid,
	.alloc_xrcd = vnic_alloc_xrcd,
	.attach_mcast = vnic_attach_mcast,
	.create_ah = vnic_create_ah,
	.create_user_ah = vnic_create_ah,
	.dealloc_xrcd = vnic_dealloc_xrcd,
	.del_gid = vnic_del_gid,
	.destroy_ah = vnic_destroy_ah,
	.detach_mcast = vnic_detach_mcast,
	.query_ah = vnic_query_ah,
	.query_pkey = vnic_query_pkey,

	INIT_RDMA_OBJ_SIZE(ib_ah, vnic_ah, ibah),
	INIT_RDMA_OBJ_SIZE(ib_xrcd, vnic_xrcd, ibxrcd),
};

static const struct ib_device_ops vnic_iwarp_ops = {
	.iw_accept = vnic_iw_accept,
	.iw_add_ref = vnic_iw_add_ref,
	.iw_connect = vnic_iw_connect,
	.iw_create_listen = vnic_iw_create_listen,
	.iw_destroy_listen = vnic_iw_destroy_listen,
	.iw_get_qp = vnic_iw_get_qp,
	.iw_reject = vnic_iw_reject,
	.iw_rem_ref = vnic_iw_rem_ref,
	.query_gid = vnic_query_gid,
};

/* Over iWARP ports are those of TCP at the function's address: nothing maps them. */
static void vnic_be_iwarp(struct ib_device *dev, const struct net_device *netdev)
{
	dev->node_type = RDMA_NODE_RNIC;
	strscpy(dev->iw_ifname, netdev->name, sizeof(dev->iw_ifname));
	dev->iw_driver_flags = IW_F_NO_PORT_MAP;
	ib_set_device_ops(dev, &vnic_iwarp_ops);
}

struct vnic_ibdev *vnic_ib_register(struct vnic_fn *fn, struct net_device *netdev)
{
	struct vnic_ibdev *v = ib_alloc_device(vnic_ibdev, ibdev);
	struct ib_device *dev;
	int err;

	if (!v)
		return ERR_PTR(-ENOMEM);
	v->fn = fn;
	dev = &v->ibdev;
	dev->phys_port_cnt = 1;
	dev->num_comp_vectors = max(1U, fn->num_event_queues);
	dev->local_dma_lkey = VNIC_RESERVED_LKEY;
	dev->node_guid = cpu_to_be64(le64_to_cpu(fn->limits.node_guid));
	dev->dev.parent = &fn->pdev->dev;
	strscpy(dev->node_desc, "vnic", sizeof(dev->node_desc));
	/* Programs ring doorbells by these calls, with an empty list of requests. */
	dev->uverbs_cmd_mask |= BIT_ULL(IB_USER_VERBS_CMD_POST_SEND) |
				BIT_ULL(IB_USER_VERBS_CMD_POST_RECV) |
				BIT_ULL(IB_USER_VERBS_CMD_POST_SRQ_RECV);
	dev->driver_def = vnic_uapi;
	ib_set_device_ops(dev, &vnic_ops);
	if (fn->features & VNIC_FEATURE_IWARP) {
		vnic_be_iwarp(dev, netdev);
	} else {
		dev->node_type = RDMA_NODE_IB_CA;
		ib_set_device_ops(dev, &vnic_roce_ops);
	}
	err = ib_device_set_netdev(dev, netdev, 1);
	if (err)
		goto err_device;
	err = ib_register_device(dev, "vnic%d", &fn->pdev->dev);
	if (err)
		goto err_device;
	return v;

err_device:
	ib_dealloc_device(dev);
	return ERR_PTR(err);
}

void vnic_ib_unregister(struct vnic_ibdev *v)
{
	ib_unregister_device(&v->ibdev);
	ib_dealloc_device(&v->ibdev);
}

/* Dispatches an event of the port or of the whole device; from any context. */
void vnic_ib_event(struct vnic_fn *fn, enum ib_event_type type)
{
	struct ib_event ev = { .event = type, .element.port_num = 1 };
	unsigned long flags;

	spin_lock_irqsave(&fn->ib_lock, flags);
	if (fn->ib) {
		ev.device = &fn->ib->ibdev;
		ib_dispatch_event(&ev);
	}
	spin_unlock_irqrestore(&fn->ib_lock, flags);
}
