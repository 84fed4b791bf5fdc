// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory windows of type 1 between two queue pairs of one device: what is in the window and allowed
 * arrives; what is not is refused at both ends and changes nothing.
 *
 *   window DEVICE GID-INDEX
 */
#include <time.h>

#include "verbs.h"

enum { page = 4096, begin = 1024, length = 2048, local = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND };

static char target[page] __attribute__((aligned(4096)));
static char source[page] __attribute__((aligned(4096)));

static struct ibv_mr *from, *to;
static struct ibv_qp *ends[2]; /* the first asks, the second has the window */

/* open_ends makes both queue pairs anew: a refused request leaves them in the state of error. */
static void open_ends(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .send_cq = cq, .recv_cq = cq,
					 .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };

	for (int i = 0; i < 2; i++) {
		must(!ends[i] || !ibv_destroy_qp(ends[i]), "ibv_destroy_qp");
		ends[i] = ibv_create_qp(pd, &init);
		must(ends[i] != NULL, "ibv_create_qp");
	}
	for (int i = 0; i < 2; i++)
		connect_to(ends[i], ends[1 - i]->qp_num, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, IBV_MTU_1024);
}

static enum ibv_wc_status completion(void)
{
	time_t end = time(NULL) + 60;
	struct ibv_wc wc;
	int n;

	do {
		n = ibv_poll_cq(cq, 1, &wc);
		must(n >= 0 && time(NULL) < end, "ibv_poll_cq");
	} while (!n);
	return wc.status;
}

static void bind_window(struct ibv_mw *mw, int bytes, int access)
{
	struct ibv_mw_bind b = { .send_flags = IBV_SEND_SIGNALED,
				 .bind_info = { .mr = to, .addr = (unsigned long)target + begin, .length = bytes, .mw_access_flags = access } };

	must(!ibv_bind_mw(ends[1], mw, &b), "ibv_bind_mw");
	must(completion() == IBV_WC_SUCCESS, "binding");
}

/* request has 64 bytes of the window written or read, at an offset of the page. */
static enum ibv_wc_status request(enum ibv_wr_opcode opcode, unsigned rkey, int offset)
{
	struct ibv_sge sge = { .addr = (unsigned long)source, .length = 64, .lkey = from->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
				  .wr.rdma = { .remote_addr = (unsigned long)target + offset, .rkey = rkey } }, *bad;

	must(!ibv_post_send(ends[0], &wr, &bad), "ibv_post_send");
	return completion();
}

static void taken(const char *what, unsigned rkey, int offset)
{
	memset(source, offset >> 4, sizeof source);
	memset(target, 0x55, sizeof target);
	must(request(IBV_WR_RDMA_WRITE, rkey, offset) == IBV_WC_SUCCESS, what);
	must(!memcmp(source, target + offset, 64), what);
}

static void refused(const char *what, enum ibv_wr_opcode opcode, unsigned rkey, int offset)
{
	static char before[page];
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	enum ibv_wc_status status;

	memset(source, 0xaa, sizeof source);
	memset(target, 0x55, sizeof target);
	memcpy(before, target, page);
	status = request(opcode, rkey, offset);
	if (status != IBV_WC_REM_ACCESS_ERR) {
		fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(status));
		exit(1);
	}
	must(!memcmp(before, target, page) && source[0] == (char)0xaa, what);
	for (int i = 0; i < 2; i++) {
		must(!ibv_query_qp(ends[i], &attr, IBV_QP_STATE, &init), "ibv_query_qp");
		must(attr.qp_state == IBV_QPS_ERR, what);
	}
	printf("refused: %s\n", what);
	open_ends();
}

int main(int argc, char **argv)
{
	struct ibv_mw *mw;
	unsigned first;

	must(argc == 3, "window DEVICE GID-INDEX");
	gid_index = atoi(argv[2]);
	open_device(argv[1], 64);
	from = ibv_reg_mr(pd, source, page, IBV_ACCESS_LOCAL_WRITE);
	to = ibv_reg_mr(pd, target, page, local);
	must(from && to, "ibv_reg_mr");
	open_ends();
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	must(mw != NULL, "ibv_alloc_mw");

	bind_window(mw, length, IBV_ACCESS_REMOTE_WRITE);
	first = mw->rkey;
	taken("its beginning", first, begin);
	taken("its end", first, begin + length - 64);
	refused("behind its end", IBV_WR_RDMA_WRITE, first, begin + length);
	refused("across its end", IBV_WR_RDMA_WRITE, first, begin + length - 63);
	refused("in front of it", IBV_WR_RDMA_WRITE, first, begin - 1);
	refused("a READ, for WRITEs only", IBV_WR_RDMA_READ, first, begin);
	refused("the region's own key", IBV_WR_RDMA_WRITE, to->rkey, begin);
	must(ibv_dereg_mr(to) == EBUSY, "ibv_dereg_mr of a region with a window");

	bind_window(mw, length, IBV_ACCESS_REMOTE_WRITE); /* anew: another key */
	must(mw->rkey != first, "the key is the same");
	taken("the new key", mw->rkey, begin);
	refused("the key of before", IBV_WR_RDMA_WRITE, first, begin);
	taken("the new key, still", mw->rkey, begin);

	first = mw->rkey;
	bind_window(mw, 0, 0); /* of nothing: unbound */
	refused("an unbound window", IBV_WR_RDMA_WRITE, first, begin);

	must(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(to) && !ibv_dereg_mr(from), "dealloc");
	must(!ibv_destroy_qp(ends[0]) && !ibv_destroy_qp(ends[1]) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(device), "destroy");
	printf("windows hold\n");
	return 0;
}
