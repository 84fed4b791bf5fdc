// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The GID table, and addresses of queue pairs and datagrams. */
#include <rdma/ib_cache.h>

#include "vnic.h"

#define VNIC_GID_TYPE_IP 0

/*
 * Tells the device of an address in the table of ib_core. The device takes those that the
 * NIC's configuration gives the function, and its link-local one; others want a trusted
 * function. It announces them to other NICs, and refuses one that another function has.
 *
 * The NIC carries no VLAN tags. The addresses of VLAN interfaces are in ib_core's table all
 * the same, and a driver that refuses one causes an error message. So such an entry is
 * accepted and the device not told of it: vnic_address() refuses to send from it.
 */
int vnic_add_gid(const struct ib_gid_attr *attr, void **context)
{
	struct vnic_fn *fn = to_fn(attr->device);
	struct vnic_gid_entry p = {
		.index = cpu_to_le16(attr->index),
		.type = VNIC_GID_TYPE_IP,
		.vlan = cpu_to_le16(VNIC_NO_VLAN),
	};
	u16 vlan = VNIC_NO_VLAN;
	int err;

	err = rdma_read_gid_l2_fields(attr, &vlan, p.mac);
	if (err)
		return err;
	if (vlan != VNIC_NO_VLAN) {
		ibdev_info_ratelimited(attr->device,
				       "the NIC carries no VLAN tags: no RDMA from addresses of VLAN interfaces\n");
		return 0;
	}
	memcpy(p.gid, attr->gid.raw, sizeof(p.gid));
	mutex_lock(&fn->kernel_lock);
	err = vnic_command(fn, VNIC_ADMIN_OP_ADD_GID, &p, sizeof(p), NULL, 0);
	if (err == -EIO)
		err = 0; /* the device is told when it is back */
	if (!err)
		fn->gids[attr->index] = (struct vnic_gid){ .entry = p, .used = true };
	mutex_unlock(&fn->kernel_lock);
	if (err == -EPERM)
		ibdev_warn(attr->device,
			   "%pI6 is not the function's: RDMA from it wants it in port.addresses, or trust (vnic vf set)\n",
			   attr->gid.raw);
	else if (err == -EADDRINUSE)
		ibdev_warn(attr->device, "%pI6 is the address of another function of the tenant\n",
			   attr->gid.raw);
	return err;
}

int vnic_del_gid(const struct ib_gid_attr *attr, void **context)
{
	struct vnic_gid_index p = { .index = cpu_to_le16(attr->index) };
	struct vnic_fn *fn = to_fn(attr->device);
	int err = 0;

	mutex_lock(&fn->kernel_lock);
	if (fn->gids[attr->index].used) {
		fn->gids[attr->index].used = false;
		err = vnic_destroy(fn, READ_ONCE(fn->life), VNIC_ADMIN_OP_DEL_GID, &p, sizeof(p));
	}
	mutex_unlock(&fn->kernel_lock);
	return err;
}

/* An address vector, as the device reads it. */
int vnic_address(const struct rdma_ah_attr *attr, struct vnic_address *to)
{
	const struct ib_global_route *grh;
	u16 vlan = VNIC_NO_VLAN;
	int err;

	if (attr->type != RDMA_AH_ATTR_TYPE_ROCE || !(rdma_ah_get_ah_flags(attr) & IB_AH_GRH))
		return -EINVAL;
	grh = rdma_ah_read_grh(attr);
	err = grh->sgid_attr ? rdma_read_gid_l2_fields(grh->sgid_attr, &vlan, NULL) : 0;
	if (err)
		return err;
	if (vlan != VNIC_NO_VLAN)
		return -EOPNOTSUPP;
	memset(to, 0, sizeof(*to));
	memcpy(to->dgid, grh->dgid.raw, sizeof(to->dgid));
	to->flow_label = cpu_to_le32(grh->flow_label & 0xfffff);
	memcpy(to->dmac, attr->roce.dmac, sizeof(to->dmac));
	to->vlan = cpu_to_le16(VNIC_NO_VLAN);
	to->traffic_class = grh->traffic_class;
	to->hop_limit = grh->hop_limit;
	to->sl = rdma_ah_get_sl(attr) & 0xf;
	to->sgid_index = grh->sgid_attr ? grh->sgid_attr->index : grh->sgid_index;
	return 0;
}

/* The address goes into each work request: the device has no object for it. */
int vnic_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *attr, struct ib_udata *udata)
{
	struct vnic_ah *ah = to_vah(ibah);
	struct vnic_ah_resp resp;
	int err;

	BUILD_BUG_ON(sizeof(resp.address) != sizeof(ah->address));
	err = vnic_address(attr->ah_attr, &ah->address);
	if (err || !udata)
		return err;
	if (udata->outlen < sizeof(resp))
		return -EINVAL;
	memcpy(resp.address, &ah->address, sizeof(resp.address));
	return ib_copy_to_udata(udata, &resp, sizeof(resp));
}

/* The address vector of a QP or an AH, as verbs have it. */
void vnic_query_address(const struct vnic_address *from, struct rdma_ah_attr *attr)
{
	memset(attr, 0, sizeof(*attr));
	attr->type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(attr, 1);
	rdma_ah_set_sl(attr, from->sl);
	rdma_ah_set_grh(attr, NULL, le32_to_cpu(from->flow_label), from->sgid_index,
			from->hop_limit, from->traffic_class);
	rdma_ah_set_dgid_raw(attr, (void *)from->dgid);
	memcpy(attr->roce.dmac, from->dmac, sizeof(from->dmac));
}

int vnic_query_ah(struct ib_ah *ibah, struct rdma_ah_attr *attr)
{
	vnic_query_address(&to_vah(ibah)->address, attr);
	return 0;
}

int vnic_destroy_ah(struct ib_ah *ah, u32 flags)
{
	return 0;
}

static int vnic_mcast(struct ib_qp *ibqp, const union ib_gid *gid, u16 op)
{
	struct vnic_qp *qp = to_vqp(ibqp);
	struct vnic_mcast p = { .qpn = cpu_to_le32(qp->qpn) };

	memcpy(p.gid, gid->raw, sizeof(p.gid));
	if (op == VNIC_ADMIN_OP_DETACH_MCAST)
		return vnic_destroy(to_fn(ibqp->device), qp->life, op, &p, sizeof(p));
	return vnic_command_in(to_fn(ibqp->device), qp->life, op, &p, sizeof(p), NULL, 0);
}

/* A group of the function's network. There are no LIDs. */
int vnic_attach_mcast(struct ib_qp *qp, union ib_gid *gid, u16 lid)
{
	return vnic_mcast(qp, gid, VNIC_ADMIN_OP_ATTACH_MCAST);
}

int vnic_detach_mcast(struct ib_qp *qp, union ib_gid *gid, u16 lid)
{
	return vnic_mcast(qp, gid, VNIC_ADMIN_OP_DETACH_MCAST);
}
