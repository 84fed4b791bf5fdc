// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A hostile program of TestLongDriverHostile: it makes verbs objects, writes rubbish over all that
 * they let it map, posts rubbish, rings, and begins anew. What fails of it is its own affair.
 *
 *   rubbish SECONDS SEED
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t state;

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static char memory[1 << 16] __attribute__((aligned(4096)));

struct objects {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_qp *rc, *ud;
};

static struct ibv_qp *make_qp(struct objects *o, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = o->cq, .recv_cq = o->cq, .qp_type = type, .sq_sig_all = rnd() & 1,
		.cap = { .max_send_wr = 1 + rnd() % 64, .max_recv_wr = 1 + rnd() % 64, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	struct ibv_qp *qp = ibv_create_qp(o->pd, &init);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1111, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp ? qp->qp_num : 0,
		.max_rd_atomic = 1, .max_dest_rd_atomic = 1, .timeout = 8, .retry_cnt = 1, .rnr_retry = 1, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64, .sgid_index = 1 } },
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (!qp)
		return NULL;
	ibv_query_gid(o->pd->context, 1, 1, &attr.ah_attr.grh.dgid);
	ibv_modify_qp(qp, &attr, mask | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	ibv_modify_qp(qp, &attr, IBV_QP_STATE | (type == IBV_QPT_UD ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
							 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (type == IBV_QPT_UD ? 0 : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
								   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	return qp;
}

/* Scribble over the queues that the device mapped into this process. */
static unsigned long scribble(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to, n = 0;
	char line[512], rights[8];

	while (maps && fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "uverbs") || sscanf(line, "%lx-%lx %7s", &from, &to, rights) != 3 || rights[1] != 'w')
			continue;
		for (int i = 0; i < 32; i++) {
			/* The headers twice as often as the entries; small numbers, large ones, and what is there with one bit changed. */
			volatile uint64_t *at = (uint64_t *)(from + (rnd() & 1 ? rnd() % 128 : rnd() % (to - from))/ 8 * 8);

			switch (rnd() % 4) {
			case 0: *at = rnd(); break;
			case 1: *at = rnd() % 256; break;
			case 2: *at ^= 1ULL << rnd() % 64; break;
			case 3: *(volatile uint32_t *)at += rnd() % 128; break;
			}
			n++;
		}
	}
	if (maps)
		fclose(maps);
	return n;
}

static void post(struct objects *o)
{
	struct ibv_qp *qp = rnd() & 1 ? o->rc : o->ud;
	uint32_t key = rnd() & 1 ? o->mr->lkey : (uint32_t)rnd() % (1 << rnd() % 32);
	struct ibv_sge sge = { .addr = rnd() & 1 ? (uintptr_t)memory : rnd(), .length = rnd() % 5000, .lkey = key };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = rnd() % 2 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = rnd() % 2, .opcode = rnd() % 5, .send_flags = rnd() & 0x7 }, *bad_send;

	send.wr.rdma.remote_addr = rnd() & 1 ? (uintptr_t)memory : rnd();
	send.wr.rdma.rkey = rnd() & 1 ? o->mr->rkey : (uint32_t)rnd() % (1 << rnd() % 32);
	if (qp == o->rc)
		ibv_post_send(qp, &send, &bad_send);
	ibv_post_recv(qp, &receive, &bad_receive);
	ibv_post_srq_recv(o->srq, &receive, &bad_receive);
	ibv_req_notify_cq(o->cq, rnd() & 1);
}

static int once(struct ibv_context *ctx, unsigned long *words)
{
	struct objects o = { .pd = ibv_alloc_pd(ctx), .cq = ibv_create_cq(ctx, 1 + rnd() % 200, NULL, NULL, 0) };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 16, .max_sge = 1 } };
	int ok;

	if (!o.pd || !o.cq)
		return 0;
	o.srq = ibv_create_srq(o.pd, &shared);
	o.mr = ibv_reg_mr(o.pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	o.rc = make_qp(&o, IBV_QPT_RC);
	o.ud = make_qp(&o, IBV_QPT_UD);
	ok = o.srq && o.mr && o.rc && o.ud;
	for (int i = rnd() % 60; ok && i; i--) {
		post(&o);
		*words += scribble();
	}
	if (o.rc)
		ibv_destroy_qp(o.rc);
	if (o.ud)
		ibv_destroy_qp(o.ud);
	if (o.srq)
		ibv_destroy_srq(o.srq);
	if (o.mr)
		ibv_dereg_mr(o.mr);
	ibv_destroy_cq(o.cq);
	ibv_dealloc_pd(o.pd);
	return ok;
}

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 5);
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && *list ? ibv_open_device(*list) : NULL;
	unsigned long rounds = 0, words = 0;

	state = 88172645463325252ULL ^ (argc > 2 ? strtoull(argv[2], NULL, 0) : 1);
	if (!ctx)
		return 2;
	while (time(NULL) < end) {
		if (!once(ctx, &words)) {
			fprintf(stderr, "round %lu: no objects\n", rounds);
			return 1;
		}
		rounds++;
	}
	printf("%lu rounds, %lu words of rubbish\n", rounds, words);
	return rounds && words ? 0 : 1;
}
