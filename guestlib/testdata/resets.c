/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The program of TestCObjectsOfBeforeAResetAreNoNewOnes. It makes the same objects before and after a reset, so that they have the same
 * numbers, and destroys or uses the old ones.
 *
 *   resets URL
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, vnic_error()), exit(1)))

struct objects {
	uint32_t pdn;
	struct vnic_cq *cq;
	struct vnic_qp *qp;
	struct vnic_mr mr;
};

static struct objects make(struct vnic_device *dev, void *memory)
{
	struct objects o;
	CHECK(vnic_alloc_pd(dev, &o.pdn) == 0);
	CHECK((o.cq = vnic_create_cq(dev, 16)));
	struct vnic_qp_attr attr = { .pdn = o.pdn, .send_cq = o.cq };
	CHECK((o.qp = vnic_create_qp(dev, &attr)));
	CHECK(vnic_reg_mr(dev, o.pdn, memory, VNIC_PAGE_SIZE, 0, &o.mr) == 0);
	return o;
}

static size_t used(const struct vnic_device *dev)
{
	size_t n = 0;
	for (size_t i = 0; i < dev->arena.pages; i++)
		n += dev->arena.used[i] != FREE;
	return n;
}

int main(int argc, char **argv)
{
	struct vnic_device *dev = argc == 2 ? vnic_open(argv[1], 1 << 20) : NULL;
	CHECK(dev);
	void *memory = vnic_alloc(dev, VNIC_PAGE_SIZE);
	CHECK(memory);
	size_t before = used(dev);
	struct objects old = make(dev, memory);
	size_t each = used(dev) - before;
	/* the device of the test makes no regions for work requests, but is not asked about one of before either */
	struct vnic_fast_mr fast = { .mr = old.mr, .max_pages = 1, .list = vnic_alloc(dev, VNIC_PAGE_SIZE) };
	CHECK(vnic_reset(dev) == 0);
	struct objects new = make(dev, memory);
	CHECK(new.pdn == old.pdn && new.cq->cqn == old.cq->cqn && new.qp->qpn == old.qp->qpn && new.mr.lkey == old.mr.lkey);

	struct vnic_send_wr wr = { .opcode = VNIC_OP_SEND };
	struct vnic_qp_attr attr = { .pdn = new.pdn, .send_cq = old.cq };
	CHECK(vnic_post_send(old.qp, &wr) < 0 && errno == ENOENT);
	CHECK(vnic_post_recv(old.qp, 1, NULL, 0) < 0 && errno == ENOENT);
	CHECK(vnic_connect(old.qp, vnic_get_info(dev)->gid, 7, NULL, 0, NULL, NULL, 0) < 0 && errno == ENOENT);
	CHECK(vnic_wait_cq(old.cq, -1) < 0 && errno == ENOENT);
	CHECK(!vnic_create_qp(dev, &attr) && errno == ENOENT);

	CHECK(vnic_destroy_qp(old.qp) == 0 && vnic_destroy_cq(old.cq) == 0 && vnic_dereg_mr(dev, &old.mr) == 0 && vnic_free_mr(dev, &fast) == 0);
	CHECK(used(dev) == before + each);
	CHECK(vnic_destroy_cq(new.cq) < 0 && errno == EBUSY); /* the new QP uses it still */
	CHECK(vnic_dereg_mr(dev, &new.mr) == 0 && vnic_destroy_qp(new.qp) == 0 && vnic_destroy_cq(new.cq) == 0 && vnic_dealloc_pd(dev, new.pdn) == 0);
	CHECK(used(dev) == before);
	vnic_close(dev);
	printf("as it should\n");
	return 0;
}
