// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Device memory, and what programs ask about objects that another process made.
 *
 * Device memory is memory of the guest's kernel, and not faster than other memory. The device
 * is a process of the host that reaches all of the guest's memory in the same way, so no memory
 * is nearer to it. The verbs are there for programs that ask for them.
 */
#include <linux/sizes.h>
#include <linux/slab.h>
#include <rdma/uverbs_std_types.h>

#define UVERBS_MODULE_NAME vnic
#include <rdma/uverbs_named_ioctl.h>

#include "vnic.h"

struct vnic_dm {
	struct ib_dm ibdm;
	struct vnic_area *area;
};

static struct vnic_dm *to_vdm(struct ib_dm *obj)
{
	return container_of(obj, struct vnic_dm, ibdm);
}

/* Charges device memory against the limit of the function. */
static int vnic_dm_take(struct vnic_fn *fn, size_t size)
{
	if (atomic_long_add_return(size, &fn->dm_used) <= VNIC_MAX_DM_SIZE)
		return 0;
	atomic_long_sub(size, &fn->dm_used);
	return -ENOMEM;
}

static int vnic_dm_tell(struct vnic_dm *dm, struct uverbs_attr_bundle *attrs, size_t attr)
{
	struct vnic_mapping m = {
		.offset = vnic_area_offset(dm->area),
		.size = dm->area->size,
	};

	return uverbs_copy_to(attrs, attr, &m, sizeof(m));
}

struct ib_dm *vnic_alloc_dm(struct ib_device *ibdev, struct ib_ucontext *uctx,
			    struct ib_dm_alloc_attr *attr, struct uverbs_attr_bundle *attrs)
{
	struct vnic_fn *fn = to_fn(ibdev);
	struct vnic_dm *dm;
	size_t size;
	int err;

	if (!attr->length || attr->length > VNIC_MAX_DM_SIZE || attr->alignment > PAGE_SHIFT)
		return ERR_PTR(-EINVAL);
	size = PAGE_ALIGN(attr->length);
	err = vnic_dm_take(fn, size);
	if (err)
		return ERR_PTR(err);
	dm = kzalloc_obj(*dm);
	if (!dm) {
		err = -ENOMEM;
		goto err_size;
	}
	dm->area = vnic_area_alloc(fn, size);
	if (!dm->area) {
		err = -ENOMEM;
		goto err_dm;
	}
	err = vnic_area_offer(dm->area, uctx);
	if (err)
		goto err_area;
	err = vnic_dm_tell(dm, attrs, VNIC_ATTR_ALLOC_DM_MAPPING);
	if (err)
		goto err_area;
	return &dm->ibdm;

err_area:
	vnic_area_free(dm->area);
err_dm:
	kfree(dm);
err_size:
	atomic_long_sub(size, &fn->dm_used);
	return ERR_PTR(err);
}

int vnic_dealloc_dm(struct ib_dm *ibdm, struct uverbs_attr_bundle *attrs)
{
	struct vnic_dm *dm = to_vdm(ibdm);

	atomic_long_sub(dm->area->size, &to_fn(ibdm->device)->dm_used);
	vnic_area_free(dm->area); /* after the last mapping of it is gone */
	kfree(dm);
	return 0;
}

/* The kernel has checked offset and length. */
struct ib_mr *vnic_reg_dm_mr(struct ib_pd *pd, struct ib_dm *ibdm, struct ib_dm_mr_attr *attr,
			     struct uverbs_attr_bundle *attrs)
{
	size_t first = attr->offset >> PAGE_SHIFT;
	size_t end = PAGE_ALIGN(attr->offset + attr->length) >> PAGE_SHIFT;
	struct vnic_area *area = to_vdm(ibdm)->area;
	struct vnic_translation t = {
		.offset = offset_in_page(attr->offset),
		.page_shift = PAGE_SHIFT,
	};
	struct vnic_mr *mr;
	int err;

	/* The device has no empty regions, except those that wait for a fast registration. */
	if (!attr->length)
		return vnic_alloc_mr(pd, IB_MR_TYPE_MEM_REG, 1);
	mr = vnic_mr_alloc(pd->device);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	t.list = vnic_area_list(area, to_vpd(pd)->life, first, end - first);
	if (IS_ERR(t.list)) {
		err = PTR_ERR(t.list);
		goto err_mr;
	}
	err = vnic_mr_make(pd, mr, attr->access_flags, 0, attr->length, &t);
	if (err)
		goto err_mr;
	return &mr->ibmr;

err_mr:
	vnic_mr_free(mr);
	return ERR_PTR(err);
}

static int UVERBS_HANDLER(VNIC_METHOD_DM_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_dm *ibdm = uverbs_attr_get_obj(attrs, VNIC_ATTR_QUERY_DM_HANDLE);
	u64 length;
	int err;

	if (IS_ERR(ibdm))
		return PTR_ERR(ibdm);
	length = ibdm->length;
	err = uverbs_copy_to(attrs, VNIC_ATTR_QUERY_DM_LENGTH, &length, sizeof(length));
	return err ?: vnic_dm_tell(to_vdm(ibdm), attrs, VNIC_ATTR_QUERY_DM_MAPPING);
}

static int UVERBS_HANDLER(VNIC_METHOD_PD_QUERY)(struct uverbs_attr_bundle *attrs)
{
	struct ib_pd *pd = uverbs_attr_get_obj(attrs, VNIC_ATTR_QUERY_PD_HANDLE);
	struct vnic_pd_resp resp = {};

	if (IS_ERR(pd))
		return PTR_ERR(pd);
	resp.pdn = to_vpd(pd)->pdn;
	return uverbs_copy_to(attrs, VNIC_ATTR_QUERY_PD_RESP, &resp, sizeof(resp));
}

/* What the provider has to know of the device. */
void vnic_tell_limits(struct vnic_fn *fn, struct vnic_ucontext_resp *resp)
{
	*resp = (struct vnic_ucontext_resp) {
		.abi_minor = VNIC_VERSION_MINOR,
		.max_inline = le16_to_cpu(fn->limits.max_inline),
		.max_send_sge = le16_to_cpu(fn->limits.max_sge),
		.max_recv_sge = le16_to_cpu(fn->limits.max_sge),
		.features = fn->features,
	};
}

int vnic_query_ucontext(struct ib_ucontext *uctx, struct uverbs_attr_bundle *attrs)
{
	struct vnic_ucontext_resp resp;

	vnic_tell_limits(to_fn(uctx->device), &resp);
	return uverbs_copy_to_struct_or_zero(attrs, VNIC_ATTR_QUERY_CONTEXT_RESP, &resp,
					     sizeof(resp));
}

DECLARE_UVERBS_NAMED_METHOD(VNIC_METHOD_DM_QUERY,
			    UVERBS_ATTR_IDR(VNIC_ATTR_QUERY_DM_HANDLE, UVERBS_OBJECT_DM,
					    UVERBS_ACCESS_READ, UA_MANDATORY),
			    UVERBS_ATTR_PTR_OUT(VNIC_ATTR_QUERY_DM_MAPPING,
						UVERBS_ATTR_TYPE(struct vnic_mapping),
						UA_MANDATORY),
			    UVERBS_ATTR_PTR_OUT(VNIC_ATTR_QUERY_DM_LENGTH,
						UVERBS_ATTR_TYPE(u64),
						UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(VNIC_METHOD_PD_QUERY,
			    UVERBS_ATTR_IDR(VNIC_ATTR_QUERY_PD_HANDLE, UVERBS_OBJECT_PD,
					    UVERBS_ACCESS_READ, UA_MANDATORY),
			    UVERBS_ATTR_PTR_OUT(VNIC_ATTR_QUERY_PD_RESP,
						UVERBS_ATTR_TYPE(struct vnic_pd_resp),
						UA_MANDATORY));

DECLARE_UVERBS_GLOBAL_METHODS(UVERBS_OBJECT_DM, &UVERBS_METHOD(VNIC_METHOD_DM_QUERY));
DECLARE_UVERBS_GLOBAL_METHODS(UVERBS_OBJECT_PD, &UVERBS_METHOD(VNIC_METHOD_PD_QUERY));

ADD_UVERBS_ATTRIBUTES_SIMPLE(vnic_dm_alloc, UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC,
			     UVERBS_ATTR_PTR_OUT(VNIC_ATTR_ALLOC_DM_MAPPING,
						 UVERBS_ATTR_TYPE(struct vnic_mapping),
						 UA_MANDATORY));

ADD_UVERBS_ATTRIBUTES_SIMPLE(vnic_context_query, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT,
			     UVERBS_ATTR_PTR_OUT(VNIC_ATTR_QUERY_CONTEXT_RESP,
						 UVERBS_ATTR_STRUCT(struct vnic_ucontext_resp,
								    features), UA_MANDATORY));

const struct uapi_definition vnic_uapi[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DEVICE, &vnic_context_query),
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_DM, &vnic_dm_alloc),
	UAPI_DEF_CHAIN_OBJ_TREE_NAMED(UVERBS_OBJECT_DM),
	UAPI_DEF_CHAIN_OBJ_TREE_NAMED(UVERBS_OBJECT_PD),
	{}
};
