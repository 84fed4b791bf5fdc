// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Draining of the kernel's queue pairs, as ib_core does it, but for one thing: a
 * device that is lost completes nothing, and touches nothing, any more.
 */
#include <rdma/ib_verbs.h>

#include "vnic.h"

struct vnic_drain {
	struct ib_cqe cqe;
	struct completion done;
};

static void vnic_drained(struct ib_cq *cq, struct ib_wc *wc)
{
	complete(&container_of(wc->wr_cqe, struct vnic_drain, cqe)->done);
}

static void vnic_drain_wait(struct ib_cq *cq, struct vnic_drain *d)
{
	struct vnic_fn *fn = to_fn(cq->device);

	while (!wait_for_completion_timeout(&d->done, HZ / 10)) {
		if (READ_ONCE(fn->lost))
			return;
		if (cq->poll_ctx == IB_POLL_DIRECT)
			ib_process_cq_direct(cq, -1);
	}
}

static int vnic_to_error(struct ib_qp *qp)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	return ib_modify_qp(qp, &attr, IB_QP_STATE);
}

void vnic_drain_sq(struct ib_qp *qp)
{
	struct vnic_drain d = { .cqe.done = vnic_drained };
	const struct ib_send_wr *bad;
	struct ib_rdma_wr wr = {
		.wr = {
			.wr_cqe = &d.cqe,
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
	};

	init_completion(&d.done);
	if (!vnic_to_error(qp) && !ib_post_send(qp, &wr.wr, &bad))
		vnic_drain_wait(qp->send_cq, &d);
}

void vnic_drain_rq(struct ib_qp *qp)
{
	struct vnic_drain d = { .cqe.done = vnic_drained };
	struct ib_recv_wr wr = { .wr_cqe = &d.cqe };
	const struct ib_recv_wr *bad;

	init_completion(&d.done);
	if (!vnic_to_error(qp) && !ib_post_recv(qp, &wr, &bad))
		vnic_drain_wait(qp->recv_cq, &d);
}
