// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Memory regions and windows, device memory. */
#include <errno.h>
#include <infiniband/cmd_write.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vnic.h"

struct ibv_mr *vnic_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t hca_va,
			   int access)
{
	struct ib_uverbs_reg_mr_resp resp;
	struct ibv_reg_mr cmd;
	struct verbs_mr *mr = calloc(1, sizeof(*mr));

	if (!mr)
		return NULL;
	if (ibv_cmd_reg_mr(pd, addr, length, hca_va, access, mr, &cmd, sizeof(cmd), &resp,
			   sizeof(resp))) {
		free(mr);
		return NULL;
	}
	return &mr->ibv_mr;
}

int vnic_rereg_mr(struct verbs_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		  size_t length, int access)
{
	struct ib_uverbs_rereg_mr_resp resp;
	struct ibv_rereg_mr cmd;

	return ibv_cmd_rereg_mr(mr, flags, addr, length, (uintptr_t)addr, access, pd, &cmd,
				sizeof(cmd), &resp, sizeof(resp));
}

int vnic_dereg_mr(struct verbs_mr *mr)
{
	int err = ibv_cmd_dereg_mr(mr);

	if (!err)
		free(mr);
	return err;
}

/* A region that another process registered in the same context of the kernel. */
struct ibv_mr *vnic_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	struct verbs_mr *mr = calloc(1, sizeof(*mr));

	if (!mr)
		return NULL;
	if (ibv_cmd_query_mr(pd, mr, handle)) {
		free(mr);
		return NULL;
	}
	return &mr->ibv_mr;
}

void vnic_unimport_mr(struct ibv_mr *mr)
{
	free(verbs_get_mr(mr));
}

struct ibv_mw *vnic_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ib_uverbs_alloc_mw_resp resp;
	struct ibv_alloc_mw cmd;
	struct ibv_mw *mw = calloc(1, sizeof(*mw));

	if (!mw)
		return NULL;
	if (ibv_cmd_alloc_mw(pd, type, mw, &cmd, sizeof(cmd), &resp, sizeof(resp))) {
		free(mw);
		return NULL;
	}
	return mw;
}

int vnic_dealloc_mw(struct ibv_mw *mw)
{
	int err = ibv_cmd_dealloc_mw(mw);

	if (!err)
		free(mw);
	return err;
}

/* Device memory is read and written in words of this many bytes. */
#define VNIC_DM_WORD	4

static int vnic_dm_check(const struct vnic_dm *dm, uint64_t offset, size_t length)
{
	if (offset > dm->length || length > dm->length - offset)
		return EFAULT;
	return (offset | length) % VNIC_DM_WORD ? EINVAL : 0;
}

static int vnic_to_dm(struct ibv_dm *ibdm, uint64_t offset, const void *from, size_t length)
{
	struct vnic_dm *dm = to_vdm(ibdm);
	int err = vnic_dm_check(dm, offset, length);

	if (!err)
		memcpy((char *)dm->base + offset, from, length);
	return err;
}

static int vnic_from_dm(void *to, struct ibv_dm *ibdm, uint64_t offset, size_t length)
{
	struct vnic_dm *dm = to_vdm(ibdm);
	int err = vnic_dm_check(dm, offset, length);

	if (!err)
		memcpy(to, (char *)dm->base + offset, length);
	return err;
}

/* A child may write there, too: it is data, not a queue. */
static int vnic_map_dm(struct ibv_context *ctx, struct vnic_dm *dm, const struct vnic_mapping *m)
{
	dm->size = m->size;
	dm->base = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, ctx->cmd_fd, m->offset);
	if (dm->base == MAP_FAILED)
		return errno;
	dm->ibv.dm.memcpy_to_dm = vnic_to_dm;
	dm->ibv.dm.memcpy_from_dm = vnic_from_dm;
	return 0;
}

struct ibv_dm *vnic_alloc_dm(struct ibv_context *ctx, struct ibv_alloc_dm_attr *attr)
{
	DECLARE_COMMAND_BUFFER_LINK(attrs, UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, 1, NULL);
	struct vnic_mapping m;
	struct vnic_dm *dm;

	if (attr->comp_mask) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	dm = calloc(1, sizeof(*dm));
	if (!dm)
		return NULL;
	fill_attr_out_ptr(attrs, VNIC_ATTR_ALLOC_DM_MAPPING, &m);
	if (ibv_cmd_alloc_dm(ctx, attr, &dm->ibv, attrs))
		goto free;
	if (vnic_map_dm(ctx, dm, &m)) {
		ibv_cmd_free_dm(&dm->ibv);
		goto free;
	}
	dm->length = attr->length;
	return &dm->ibv.dm;
free:
	free(dm);
	return NULL;
}

int vnic_free_dm(struct ibv_dm *dm)
{
	int err = ibv_cmd_free_dm(&to_vdm(dm)->ibv);

	if (!err)
		vnic_unimport_dm(dm);
	return err;
}

struct ibv_dm *vnic_import_dm(struct ibv_context *ctx, uint32_t handle)
{
	DECLARE_COMMAND_BUFFER(cmd, UVERBS_OBJECT_DM, VNIC_METHOD_DM_QUERY, 3);
	struct vnic_mapping m;
	struct vnic_dm *dm = calloc(1, sizeof(*dm));

	if (!dm)
		return NULL;
	fill_attr_in_obj(cmd, VNIC_ATTR_QUERY_DM_HANDLE, handle);
	fill_attr_out_ptr(cmd, VNIC_ATTR_QUERY_DM_MAPPING, &m);
	fill_attr_out_ptr(cmd, VNIC_ATTR_QUERY_DM_LENGTH, &dm->length);
	if (execute_ioctl(ctx, cmd) || vnic_map_dm(ctx, dm, &m)) {
		free(dm);
		return NULL;
	}
	dm->ibv.handle = handle;
	dm->ibv.dm.handle = handle;
	dm->ibv.dm.comp_mask = IBV_DM_MASK_HANDLE;
	dm->ibv.dm.context = ctx;
	return &dm->ibv.dm;
}

void vnic_unimport_dm(struct ibv_dm *ibdm)
{
	struct vnic_dm *dm = to_vdm(ibdm);

	munmap(dm->base, dm->size);
	free(dm);
}

/* The kernel checks the arguments. */
struct ibv_mr *vnic_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
			      unsigned int access)
{
	struct verbs_mr *mr = calloc(1, sizeof(*mr));

	if (!mr)
		return NULL;
	if (ibv_cmd_reg_dm_mr(pd, &to_vdm(dm)->ibv, offset, length, access, mr, NULL)) {
		free(mr);
		return NULL;
	}
	return &mr->ibv_mr;
}
