// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The GID table, and addresses of queue pairs and datagrams. */
#include <rdma/ib_cache.h>
#include <rdma/uverbs_ioctl.h>

#include "vnic.h"

#define VNIC_GID_TYPE_IP 0

/*
 * Tells the device that the table of ib_core has an address. The device takes those
 * that the NIC's configuration gives the function, and its link-local one; others want
 * a trusted function. It announces them, and refuses one that another function has.
 *
 * The NIC carries no VLAN tags, but ib_core has the addresses of VLAN interfaces in
 * its table too, and calls it an error if the driver does not take one. The device is
 * told nothing of those: vnic_address() refuses what would be sent from them.
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
		dev_info_once(&fn->pdev->dev,
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
		dev_warn(&fn->pdev->dev,
			 "%pI6 is not the function's: RDMA from it wants it in port.addresses, or trust (vnic vf set)\n",
			 attr->gid.raw);
	else if (err == -EADDRINUSE)
		dev_warn(&fn->pdev->dev, "%pI6 is the address of another function of the tenant\n",
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

int vnic_address(struct vnic_fn *fn, const struct rdma_ah_attr *attr,
		 struct vnic_address *to)
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

/* The address goes into each work request: the device knows of no handle. */
int vnic_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *attr, struct ib_udata *udata)
{
	struct vnic_ah *ah = to_vah(ibah);
	struct vnic_ah_resp resp;
	int err;

	err = vnic_address(to_fn(ibah->device), attr->ah_attr, &ah->address);
	if (err || !udata)
		return err;
	if (udata->outlen < sizeof(resp))
		return -EINVAL;
	resp.address = ah->address;
	return ib_copy_to_udata(udata, &resp, sizeof(resp));
}

int vnic_query_ah(struct ib_ah *ibah, struct rdma_ah_attr *attr)
{
	const struct vnic_address *to = &to_vah(ibah)->address;

	memset(attr, 0, sizeof(*attr));
	attr->type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(attr, 1);
	rdma_ah_set_sl(attr, to->sl);
	rdma_ah_set_grh(attr, NULL, le32_to_cpu(to->flow_label), to->sgid_index, to->hop_limit,
			to->traffic_class);
	rdma_ah_set_dgid_raw(attr, (void *)to->dgid);
	memcpy(attr->roce.dmac, to->dmac, sizeof(to->dmac));
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

/* A group of the function's network; a LID means nothing here. */
int vnic_attach_mcast(struct ib_qp *qp, union ib_gid *gid, u16 lid)
{
	return vnic_mcast(qp, gid, VNIC_ADMIN_OP_ATTACH_MCAST);
}

int vnic_detach_mcast(struct ib_qp *qp, union ib_gid *gid, u16 lid)
{
	return vnic_mcast(qp, gid, VNIC_ADMIN_OP_DETACH_MCAST);
}
