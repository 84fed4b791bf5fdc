// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Devices, contexts, protection domains, address handles. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/cmd_write.h>
#include <sys/mman.h>

#include "vnic.h"

int vnic_map(struct ibv_context *ctx, struct vnic_map *map, const struct vnic_mapping *m)
{
	void *base;

	if (!m->size)
		return 0;
	base = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, ctx->cmd_fd, m->offset);
	if (base == MAP_FAILED)
		return errno;
	/* A child process that writes here would post work for its parent. */
	if (ibv_dontfork_range(base, m->size)) {
		munmap(base, m->size);
		return ENOMEM;
	}
	map->base = base;
	map->size = m->size;
	return 0;
}

void vnic_unmap(struct vnic_map *map)
{
	if (!map->base)
		return;
	ibv_dofork_range(map->base, map->size);
	munmap(map->base, map->size);
	map->base = NULL;
}

static int vnic_query_device(struct ibv_context *ctx, const struct ibv_query_device_ex_input *input,
			     struct ibv_device_attr_ex *attr, size_t size)
{
	struct ib_uverbs_ex_query_device_resp resp;
	size_t resp_size = sizeof(resp);
	int err;

	err = ibv_cmd_query_device_any(ctx, input, attr, size, &resp, &resp_size);
	if (err)
		return err;
	if (size >= offsetof(struct ibv_device_attr_ex, device_cap_flags_ex) +
			    sizeof(attr->device_cap_flags_ex))
		attr->device_cap_flags_ex |= IB_UVERBS_DEVICE_ATOMIC_WRITE; /* between two vnics */
	snprintf(attr->orig_attr.fw_ver, sizeof(attr->orig_attr.fw_ver), "%u.%u",
		 (unsigned int)(resp.base.fw_ver >> 32), (unsigned int)resp.base.fw_ver);
	return 0;
}

/* The device's clock, as in completions. The kernel asks the device for it. */
static int vnic_query_rt_values(struct ibv_context *ctx, struct ibv_values_ex *values)
{
	struct {
		struct ib_uverbs_ex_query_device_resp ibv;
		struct vnic_device_resp drv;
	} resp = {};
	size_t size = sizeof(resp);
	struct ibv_device_attr_ex attr;
	int err;

	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return EINVAL;
	if (!values->comp_mask)
		return 0;
	err = ibv_cmd_query_device_any(ctx, NULL, &attr, sizeof(attr), &resp.ibv, &size);
	if (err)
		return err;
	if (!resp.drv.clock)
		return EOPNOTSUPP; /* an older module */
	values->raw_clock.tv_sec = 0;
	values->raw_clock.tv_nsec = resp.drv.clock;
	return 0;
}

static int vnic_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	struct ibv_query_port cmd;

	return ibv_cmd_query_port(ctx, port, attr, &cmd, sizeof(cmd));
}

static struct ibv_pd *vnic_alloc_pd(struct ibv_context *ctx)
{
	struct {
		struct ib_uverbs_alloc_pd_resp ibv;
		struct vnic_pd_resp drv;
	} resp = {};
	struct ibv_alloc_pd cmd;
	struct vnic_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	if (ibv_cmd_alloc_pd(ctx, &pd->ibv, &cmd, sizeof(cmd), &resp.ibv, sizeof(resp))) {
		free(pd);
		return NULL;
	}
	atomic_init(&pd->refs, 1);
	return &pd->ibv;
}

/* A protection domain that another process made in the same context of the kernel. */
static struct ibv_pd *vnic_import_pd(struct ibv_context *ctx, uint32_t handle)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_PD, VNIC_METHOD_PD_QUERY, 2);
	struct vnic_pd_resp resp;
	struct vnic_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	fill_attr_in_obj(cmd, VNIC_ATTR_QUERY_PD_HANDLE, handle);
	fill_attr_out_ptr(cmd, VNIC_ATTR_QUERY_PD_RESP, &resp);
	if (execute_ioctl(ctx, cmd)) { /* there is none */
		free(pd);
		return NULL;
	}
	pd->ibv.context = ctx;
	pd->ibv.handle = handle;
	atomic_init(&pd->refs, 1);
	return &pd->ibv;
}

static void vnic_unimport_pd(struct ibv_pd *pd)
{
	free(to_vpd(pd));
}

static int vnic_dealloc_pd(struct ibv_pd *ibpd)
{
	struct vnic_pd *pd = to_vpd(ibpd);
	int err;

	if (atomic_load(&pd->refs) > 1)
		return EBUSY;
	if (pd->parent) {
		atomic_fetch_sub(&pd->parent->refs, 1);
		if (pd->td)
			atomic_fetch_sub(&pd->td->refs, 1);
	} else {
		err = ibv_cmd_dealloc_pd(ibpd);
		if (err)
			return err;
	}
	free(pd);
	return 0;
}

static struct ibv_td *vnic_alloc_td(struct ibv_context *ctx, struct ibv_td_init_attr *attr)
{
	struct vnic_td *td;

	if (attr->comp_mask) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td)
		return NULL;
	td->ibv.context = ctx;
	atomic_init(&td->refs, 1);
	return &td->ibv;
}

static int vnic_dealloc_td(struct ibv_td *ibtd)
{
	struct vnic_td *td = to_vtd(ibtd);

	if (atomic_load(&td->refs) > 1)
		return EBUSY;
	free(td);
	return 0;
}

/* The kernel allocates the memory of queues, so a caller's allocator is not used. */
static struct ibv_pd *vnic_alloc_parent_domain(struct ibv_context *ctx,
					       struct ibv_parent_domain_init_attr *attr)
{
	struct vnic_pd *pd;

	if (ibv_check_alloc_parent_domain(attr))
		return NULL;
	if (attr->comp_mask & ~(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
				IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)) {
		errno = EINVAL;
		return NULL;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	pd->parent = to_vpd(attr->pd);
	atomic_fetch_add(&pd->parent->refs, 1);
	if (attr->td) {
		pd->td = to_vtd(attr->td);
		atomic_fetch_add(&pd->td->refs, 1);
	}
	atomic_init(&pd->refs, 1);
	ibv_initialize_parent_domain(&pd->ibv, attr->pd);
	return &pd->ibv;
}

struct ibv_pd *vnic_real_pd(struct ibv_pd *pd)
{
	return pd && to_vpd(pd)->parent ? &to_vpd(pd)->parent->ibv : pd;
}

/* Notes that an object uses a parent domain, and whether only one thread uses the object. */
void vnic_domain_hold(struct ibv_pd *pd, struct vnic_pd **parent, bool *single)
{
	*parent = NULL;
	*single = false;
	if (!pd || !to_vpd(pd)->parent)
		return;
	*parent = to_vpd(pd);
	*single = (*parent)->td;
	atomic_fetch_add(&(*parent)->refs, 1);
}

void vnic_domain_drop(struct vnic_pd *parent)
{
	if (parent)
		atomic_fetch_sub(&parent->refs, 1);
}

static struct ibv_ah *vnic_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct {
		struct ib_uverbs_create_ah_resp ibv;
		struct vnic_ah_resp drv;
	} resp = {};
	struct vnic_ah *ah = calloc(1, sizeof(*ah));

	if (!ah)
		return NULL;
	if (ibv_cmd_create_ah(pd, &ah->ibv, attr, &resp.ibv, sizeof(resp))) {
		free(ah);
		return NULL;
	}
	memcpy(&ah->address, resp.drv.address, sizeof(ah->address));
	return &ah->ibv;
}

static int vnic_destroy_ah(struct ibv_ah *ah)
{
	int err = ibv_cmd_destroy_ah(ah);

	if (!err)
		free(to_vah(ah));
	return err;
}

static void vnic_free_context(struct ibv_context *ibctx)
{
	struct vnic_context *ctx = to_vctx(ibctx);

	verbs_uninit_context(&ctx->ibv);
	free(ctx);
}

static const struct verbs_context_ops vnic_ops = {
	.alloc_dm = vnic_alloc_dm,
	.alloc_mw = vnic_alloc_mw,
	.alloc_parent_domain = vnic_alloc_parent_domain,
	.alloc_pd = vnic_alloc_pd,
	.alloc_td = vnic_alloc_td,
	.attach_mcast = ibv_cmd_attach_mcast,
	.bind_mw = vnic_bind_mw,
	.close_xrcd = vnic_close_xrcd,
	.create_ah = vnic_create_ah,
	.create_cq = vnic_create_cq,
	.create_cq_ex = vnic_create_cq_ex,
	.create_qp = vnic_create_qp,
	.create_qp_ex = vnic_create_qp_ex,
	.create_srq = vnic_create_srq,
	.create_srq_ex = vnic_create_srq_ex,
	.dealloc_mw = vnic_dealloc_mw,
	.dealloc_pd = vnic_dealloc_pd,
	.dealloc_td = vnic_dealloc_td,
	.dereg_mr = vnic_dereg_mr,
	.destroy_ah = vnic_destroy_ah,
	.destroy_cq = vnic_destroy_cq,
	.destroy_qp = vnic_destroy_qp,
	.destroy_srq = vnic_destroy_srq,
	.detach_mcast = ibv_cmd_detach_mcast,
	.free_context = vnic_free_context,
	.free_dm = vnic_free_dm,
	.get_srq_num = vnic_get_srq_num,
	.import_dm = vnic_import_dm,
	.import_mr = vnic_import_mr,
	.import_pd = vnic_import_pd,
	.modify_cq = vnic_modify_cq,
	.modify_qp = vnic_modify_qp,
	.modify_srq = vnic_modify_srq,
	.open_qp = vnic_open_qp,
	.open_xrcd = vnic_open_xrcd,
	.poll_cq = vnic_poll_cq,
	.post_recv = vnic_post_recv,
	.post_send = vnic_post_send,
	.post_srq_recv = vnic_post_srq_recv,
	.query_device_ex = vnic_query_device,
	.query_port = vnic_query_port,
	.query_qp = vnic_query_qp,
	.query_rt_values = vnic_query_rt_values,
	.query_srq = vnic_query_srq,
	.reg_dm_mr = vnic_reg_dm_mr,
	.reg_mr = vnic_reg_mr,
	.req_notify_cq = vnic_req_notify_cq,
	.rereg_mr = vnic_rereg_mr,
	.resize_cq = vnic_resize_cq,
	.unimport_dm = vnic_unimport_dm,
	.unimport_mr = vnic_unimport_mr,
	.unimport_pd = vnic_unimport_pd,
};

static struct verbs_context *vnic_alloc_context(struct ibv_device *dev, int cmd_fd, void *priv)
{
	struct {
		struct ib_uverbs_get_context_resp ibv;
		struct vnic_ucontext_resp drv;
	} resp = {};
	struct ibv_get_context cmd;
	struct vnic_context *ctx;

	ctx = verbs_init_and_alloc_context(dev, cmd_fd, ctx, ibv, RDMA_DRIVER_VNIC);
	if (!ctx)
		return NULL;
	if (ibv_cmd_get_context(&ctx->ibv, &cmd, sizeof(cmd), NULL, &resp.ibv, sizeof(resp))) {
		verbs_uninit_context(&ctx->ibv);
		free(ctx);
		return NULL;
	}
	ctx->limits = resp.drv;
	verbs_set_ops(&ctx->ibv, &vnic_ops);
	return &ctx->ibv;
}

/* The context of another process, which passed its file descriptor. */
static struct verbs_context *vnic_import_context(struct ibv_device *dev, int cmd_fd)
{
	DECLARE_COMMAND_BUFFER_LINK(attrs, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT, 1,
				    NULL);
	struct vnic_context *ctx;

	ctx = verbs_init_and_alloc_context(dev, cmd_fd, ctx, ibv, RDMA_DRIVER_VNIC);
	if (!ctx)
		return NULL;
	fill_attr_out_ptr(attrs, VNIC_ATTR_QUERY_CONTEXT_RESP, &ctx->limits);
	if (ibv_cmd_query_context(&ctx->ibv.context, attrs)) {
		verbs_uninit_context(&ctx->ibv);
		free(ctx);
		return NULL;
	}
	verbs_set_ops(&ctx->ibv, &vnic_ops);
	return &ctx->ibv;
}

static struct verbs_device *vnic_alloc_device(struct verbs_sysfs_dev *sysfs)
{
	struct vnic_device *dev = calloc(1, sizeof(*dev));

	if (!dev)
		return NULL;
	dev->ibv.device.node_type = IBV_NODE_CA;
	dev->ibv.device.transport_type = IBV_TRANSPORT_IB;
	return &dev->ibv;
}

static void vnic_uninit_device(struct verbs_device *dev)
{
	free(container_of(dev, struct vnic_device, ibv));
}

/* The driver outside of the kernel's tree has no id of its own, but says its name in sysfs. */
static bool vnic_match_device(struct verbs_sysfs_dev *sysfs)
{
	char type[16];

	return ibv_read_ibdev_sysfs_file(type, sizeof(type), sysfs, "hca_type") > 0 &&
	       !strcmp(type, "vnic");
}

static const struct verbs_device_ops vnic_device_ops = {
	.name = "vnic",
	.match_min_abi_version = VNIC_USER_ABI_VERSION,
	.match_max_abi_version = VNIC_USER_ABI_VERSION,
	.match_device = vnic_match_device,
	.alloc_context = vnic_alloc_context,
	.import_context = vnic_import_context,
	.alloc_device = vnic_alloc_device,
	.uninit_device = vnic_uninit_device,
};

PROVIDER_DRIVER(vnic, vnic_device_ops);
