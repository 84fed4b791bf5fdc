// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Memory regions and windows. */
#include <linux/dma-mapping.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <rdma/ib_umem.h>
#include <rdma/iter.h>

#include "vnic.h"

#define VNIC_ACCESS	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ | \
			 IB_ACCESS_REMOTE_ATOMIC | IB_ACCESS_MW_BIND | IB_ZERO_BASED)

static void vnic_mr_release(struct vnic_memory *m)
{
	struct vnic_mr *mr = container_of(m, struct vnic_mr, memory);
	struct ib_device *ibdev = mr->ibdev;

	if (mr->umem)
		ib_umem_release(mr->umem);
	if (mr->list)
		dma_free_coherent(ibdev->dma_device, PAGE_SIZE, mr->list, mr->list_dma);
	kfree(mr);
	put_device(&ibdev->dev);
}

struct vnic_mr *vnic_mr_alloc(struct ib_device *ibdev)
{
	struct vnic_mr *mr = kzalloc_obj(*mr);

	if (!mr)
		return NULL;
	mr->memory.release = vnic_mr_release;
	mr->ibdev = ibdev; /* held: the memory may be kept after ibdev is unregistered */
	get_device(&ibdev->dev);
	return mr;
}

void vnic_mr_free(struct vnic_mr *mr)
{
	vnic_give_back(to_fn(mr->ibdev), &mr->memory);
}

/*
 * The key for the kernel's own memory. The device takes it, with DMA addresses, in queue
 * pairs that the kernel made. There is no remote key.
 */
struct ib_mr *vnic_get_dma_mr(struct ib_pd *pd, int access)
{
	struct vnic_mr *mr;

	if (access & ~IB_ACCESS_LOCAL_WRITE)
		return ERR_PTR(-EOPNOTSUPP);
	mr = vnic_mr_alloc(pd->device);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->ibmr.lkey = VNIC_RESERVED_LKEY;
	return &mr->ibmr;
}

/*
 * The device takes any offset in the first page. So the largest page size follows from the
 * DMA addresses alone, whatever the region's own addresses are.
 */
static int vnic_translate(struct vnic_mr *mr, u32 life, struct vnic_translation *t)
{
	struct ib_umem *umem = mr->umem;
	u64 first = sg_dma_address(umem->sgt_append.sgt.sgl) + ib_umem_offset(umem);
	unsigned long size = ib_umem_find_best_pgsz(umem, VNIC_PAGE_SIZES, first);
	struct ib_block_iter iter;
	size_t i = 0;

	if (!size)
		return -EINVAL;
	t->page_shift = __ffs(size);
	t->offset = first & (size - 1);
	t->list = vnic_page_list_alloc(to_fn(mr->ibdev), life, ib_umem_num_dma_blocks(umem, size));
	if (IS_ERR(t->list))
		return PTR_ERR(t->list);
	mr->memory.life = life; /* the device may know of it from now on */
	rdma_umem_for_each_dma_block(umem, &iter, size) {
		vnic_page_list_set(t->list, i++, rdma_block_iter_dma_address(&iter));
		if (!(i % SZ_64K))
			cond_resched();
	}
	return 0;
}

static int vnic_check_access(int access)
{
	/* Flags of IB_ACCESS_OPTIONAL, such as relaxed ordering, may be ignored. */
	return access & ~(VNIC_ACCESS | IB_ACCESS_OPTIONAL) ? -EOPNOTSUPP : 0;
}

/* Registers memory with the device, and frees the page list. */
int vnic_mr_make(struct ib_pd *pd, struct vnic_mr *mr, int access, u64 iova, u64 length,
		 struct vnic_translation *t)
{
	struct vnic_reg_mr p = {
		.pdn = cpu_to_le32(to_vpd(pd)->pdn),
		.access = cpu_to_le32(access & VNIC_ACCESS),
		.iova = cpu_to_le64(access & IB_ZERO_BASED ? 0 : iova),
		.length = cpu_to_le64(length),
		.pages = cpu_to_le64(t->list->root),
		.levels = t->list->levels,
		.page_shift = t->page_shift,
		.offset = cpu_to_le32(t->offset),
	};
	struct vnic_reg_mr_result r;
	int err;

	mr->life = to_vpd(pd)->life;
	err = vnic_command_in(to_fn(pd->device), mr->life, VNIC_ADMIN_OP_REG_MR, &p, sizeof(p),
			      &r, sizeof(r));
	vnic_page_list_free(t->list);
	if (err)
		return err;
	mr->ibmr.lkey = le32_to_cpu(r.lkey);
	mr->ibmr.rkey = le32_to_cpu(r.rkey);
	mr->ibmr.length = length;
	mr->ibmr.iova = iova;
	return 0;
}

static struct vnic_mr *vnic_mr_pin(struct ib_device *ibdev, u64 start, u64 length, int access)
{
	struct vnic_mr *mr = vnic_mr_alloc(ibdev);
	struct ib_umem *umem;

	if (!mr)
		return ERR_PTR(-ENOMEM);
	umem = ib_umem_get_va(ibdev, start, length, access);
	if (IS_ERR(umem)) {
		vnic_mr_free(mr);
		return ERR_CAST(umem);
	}
	mr->umem = umem;
	return mr;
}

struct ib_mr *vnic_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
			       struct ib_dmah *dmah, struct ib_udata *udata)
{
	struct vnic_translation t;
	struct vnic_mr *mr;
	int err;

	if (dmah)
		return ERR_PTR(-EOPNOTSUPP);
	err = vnic_check_access(access);
	if (err)
		return ERR_PTR(err);
	mr = vnic_mr_pin(pd->device, start, length, access);
	if (IS_ERR(mr))
		return ERR_CAST(mr);
	err = vnic_translate(mr, to_vpd(pd)->life, &t);
	if (err)
		goto err_mr;
	err = vnic_mr_make(pd, mr, access, iova, length, &t);
	if (err)
		goto err_mr;
	return &mr->ibmr;

err_mr:
	vnic_mr_free(mr);
	return ERR_PTR(err);
}

/* Changes a region. After an error it is unchanged. */
struct ib_mr *vnic_rereg_user_mr(struct ib_mr *ibmr, int flags, u64 start, u64 length, u64 iova,
				 int access, struct ib_pd *pd, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibmr->device);
	struct vnic_mr *mr = to_vmr(ibmr);
	struct vnic_translation t;
	struct vnic_mr *other = NULL; /* for the new memory, and then for the old */
	struct vnic_reg_mr_result r;
	struct vnic_rereg_mr p = { .lkey = cpu_to_le32(ibmr->lkey) };
	int err;

	if (!mr->umem || flags & ~IB_MR_REREG_SUPPORTED)
		return ERR_PTR(-EOPNOTSUPP);
	/* The pages are pinned for the old access rights. */
	if (flags & IB_MR_REREG_ACCESS && !(flags & IB_MR_REREG_TRANS) &&
	    ib_access_writable(access) && !mr->umem->writable)
		return ERR_PTR(-EOPNOTSUPP);
	p.mask = cpu_to_le32(flags);
	p.pdn = cpu_to_le32(to_vpd(pd)->pdn);
	if (flags & IB_MR_REREG_ACCESS) {
		err = vnic_check_access(access);
		if (err)
			return ERR_PTR(err);
		p.access = cpu_to_le32(access & VNIC_ACCESS);
	}
	if (flags & IB_MR_REREG_TRANS) {
		other = vnic_mr_pin(ibmr->device, start, length, access);
		if (IS_ERR(other))
			return ERR_CAST(other);
		err = vnic_translate(other, mr->life, &t);
		if (err)
			goto out_other;
		p.iova = cpu_to_le64(access & IB_ZERO_BASED ? 0 : iova);
		p.length = cpu_to_le64(length);
		p.pages = cpu_to_le64(t.list->root);
		p.levels = t.list->levels;
		p.page_shift = t.page_shift;
		p.offset = cpu_to_le32(t.offset);
	}
	err = vnic_command_in(fn, mr->life, VNIC_ADMIN_OP_REREG_MR, &p, sizeof(p), &r, sizeof(r));
	if (other)
		vnic_page_list_free(t.list);
	if (err)
		goto out_other;
	ibmr->lkey = le32_to_cpu(r.lkey);
	ibmr->rkey = le32_to_cpu(r.rkey);
	if (other) {
		swap(mr->umem, other->umem);
		ibmr->length = length;
		ibmr->iova = iova;
	}
out_other:
	if (other)
		vnic_mr_free(other);
	return err ? ERR_PTR(err) : NULL;
}

int vnic_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct vnic_dereg_mr p = { .lkey = cpu_to_le32(ibmr->lkey) };
	struct vnic_fn *fn = to_fn(ibmr->device);
	struct vnic_mr *mr = to_vmr(ibmr);
	int err;

	if (ibmr->lkey != VNIC_RESERVED_LKEY) {
		err = vnic_destroy(fn, mr->life, VNIC_ADMIN_OP_DEREG_MR, &p, sizeof(p));
		if (err)
			return err;
	}
	if (!udata)
		vnic_await_over(fn, mr->life);
	vnic_mr_free(mr);
	return 0;
}

/* A region for fast registration: its pages come with a work request. */
struct ib_mr *vnic_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg)
{
	struct vnic_fn *fn = to_fn(pd->device);
	struct vnic_alloc_mr p = {
		.pdn = cpu_to_le32(to_vpd(pd)->pdn),
		.max_pages = cpu_to_le32(max_num_sg),
	};
	struct vnic_reg_mr_result r;
	struct vnic_mr *mr;
	int err;

	if (type != IB_MR_TYPE_MEM_REG || max_num_sg > VNIC_PAGE_LIST_ENTRIES)
		return ERR_PTR(-EINVAL);
	mr = vnic_mr_alloc(pd->device);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->max_pages = max_num_sg;
	mr->list = dma_alloc_coherent(&fn->pdev->dev, PAGE_SIZE, &mr->list_dma, GFP_KERNEL);
	if (!mr->list) {
		err = -ENOMEM;
		goto err_mr;
	}
	mr->life = to_vpd(pd)->life;
	err = vnic_command_in(fn, mr->life, VNIC_ADMIN_OP_ALLOC_MR, &p, sizeof(p), &r, sizeof(r));
	if (err)
		goto err_mr;
	mr->memory.life = mr->life; /* work requests have the address of the list */
	mr->ibmr.lkey = le32_to_cpu(r.lkey);
	mr->ibmr.rkey = le32_to_cpu(r.rkey);
	return &mr->ibmr;

err_mr:
	vnic_mr_free(mr);
	return ERR_PTR(err);
}

static int vnic_set_page(struct ib_mr *ibmr, u64 address)
{
	struct vnic_mr *mr = to_vmr(ibmr);

	if (mr->num_pages == mr->max_pages)
		return -ENOMEM;
	mr->list[mr->num_pages++] = cpu_to_le64(address);
	return 0;
}

int vnic_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int n, unsigned int *offset)
{
	to_vmr(ibmr)->num_pages = 0;
	return ib_sg_to_pages(ibmr, sg, n, offset, vnic_set_page);
}

int vnic_alloc_mw(struct ib_mw *mw, struct ib_udata *udata)
{
	struct vnic_alloc_mw p = {
		.pdn = cpu_to_le32(to_vpd(mw->pd)->pdn),
		.type = mw->type == IB_MW_TYPE_1 ? VNIC_MW_TYPE1 : VNIC_MW_TYPE2,
	};
	struct vnic_mw *vmw = container_of(mw, struct vnic_mw, ibmw);
	struct vnic_alloc_mw_result r;
	int err;

	vmw->life = to_vpd(mw->pd)->life;
	err = vnic_command_in(to_fn(mw->device), vmw->life, VNIC_ADMIN_OP_ALLOC_MW, &p, sizeof(p),
			      &r, sizeof(r));
	if (!err)
		mw->rkey = le32_to_cpu(r.rkey);
	return err;
}

int vnic_dealloc_mw(struct ib_mw *mw)
{
	struct vnic_dealloc_mw p = { .rkey = cpu_to_le32(mw->rkey) };
	struct vnic_mw *vmw = container_of(mw, struct vnic_mw, ibmw);

	return vnic_destroy(to_fn(mw->device), vmw->life, VNIC_ADMIN_OP_DEALLOC_MW, &p, sizeof(p));
}
