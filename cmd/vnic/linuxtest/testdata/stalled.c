// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The programs of TestLongDriverStall, whose NIC is stopped.
 *
 *   stalled run DEVICE GID-INDEX
 *
 * is two processes. The first writes to the memory of the second (a region and device memory) and
 * sends to its shared receive queue, without end; after SIGUSR1 it rings, too. The second destroys all
 * it has and leaves after SIGUSR2.
 *
 *   stalled fill MIB FILE
 *
 * fills memory with a pattern and, when there is FILE, fails if that has changed.
 */
#include <rdma/ib_user_verbs.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs.h"

enum { page = 4096, region = 4 << 20, device_memory = 64 << 10, depth = 512, receives = 1024, pattern = 0xa5 };

/* What the writer has to know. */
struct target {
	uint32_t qpn, rkey, dm_rkey;
	uint64_t addr;
};

static volatile sig_atomic_t ringing, leaving;

static void on_usr1(int sig)
{
	ringing = sig;
}

static void on_usr2(int sig)
{
	leaving = sig;
}

/* ring has the kernel send a doorbell, whether the NIC wants one or not. */
static void ring(struct ibv_qp *qp)
{
	struct ib_uverbs_post_send_resp resp;
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_post_send send;
	} cmd = {
		.hdr = { .command = IB_USER_VERBS_CMD_POST_SEND, .in_words = sizeof(cmd) / 4, .out_words = sizeof(resp) / 4 },
		.send = { .response = (uintptr_t)&resp, .qp_handle = qp->handle, .wqe_size = sizeof(struct ib_uverbs_send_wr) },
	};

	must(write(device->cmd_fd, &cmd, sizeof(cmd)) == sizeof(cmd), "a doorbell");
}

static void owner(const char *name, int to, int from)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = receives, .max_sge = 1 } };
	struct ibv_alloc_dm_attr dm_attr = { .length = device_memory };
	char *memory = mmap(NULL, region, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 64, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_mr *mr, *dm_mr;
	struct ibv_qp *qp, *idle;
	struct ibv_srq *srq;
	struct ibv_dm *dm;
	struct target t;
	uint32_t qpn;

	open_device(name, 4 * receives);
	must(memory != MAP_FAILED, "mmap");
	mr = ibv_reg_mr(pd, memory, region, access);
	dm = ibv_alloc_dm(device, &dm_attr);
	must(mr && dm, "a region and device memory");
	dm_mr = ibv_reg_dm_mr(pd, dm, 0, device_memory, access | IBV_ACCESS_ZERO_BASED);
	srq = ibv_create_srq(pd, &shared);
	must(dm_mr && srq, "a region of device memory and an SRQ");
	init.send_cq = init.recv_cq = cq;
	idle = ibv_create_qp(pd, &init); /* has a receive queue of its own */
	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	must(idle && qp, "QPs");
	t = (struct target){ qp->qp_num, mr->rkey, dm_mr->rkey, (uintptr_t)memory };
	must(write(to, &t, sizeof(t)) == sizeof(t) && read(from, &qpn, sizeof(qpn)) == sizeof(qpn), "a pipe");
	connect_to(qp, qpn, IBV_ACCESS_REMOTE_WRITE, IBV_MTU_4096);

	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = page, .lkey = mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;

	for (int i = 0; i < receives - 1; i++)
		must(!ibv_post_srq_recv(srq, &receive, &bad), "ibv_post_srq_recv");
	must(write(to, &qpn, sizeof(qpn)) == sizeof(qpn), "a pipe");
	while (!leaving) {
		if (ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS)
			ibv_post_srq_recv(srq, &receive, &bad);
	}
	must(!ibv_destroy_qp(qp), "ibv_destroy_qp");
	must(!ibv_destroy_qp(idle), "ibv_destroy_qp");
	must(!ibv_destroy_srq(srq), "ibv_destroy_srq");
	must(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	must(!ibv_dereg_mr(dm_mr), "ibv_dereg_mr of device memory");
	must(!ibv_free_dm(dm), "ibv_free_dm");
	must(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	must(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	must(!ibv_close_device(device), "ibv_close_device");
	exit(0);
}

static void writer(const char *name, int to, int from)
{
	static char source[page] __attribute__((aligned(page)));
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = { .max_send_wr = depth, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = page };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	unsigned long sent = 0;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	struct target t;
	uint32_t ready;

	must(read(from, &t, sizeof(t)) == sizeof(t), "a pipe");
	open_device(name, 4 * receives);
	memset(source, 0xee, sizeof(source));
	mr = ibv_reg_mr(pd, source, sizeof(source), IBV_ACCESS_LOCAL_WRITE);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	must(mr && qp, "a region and a QP");
	sge.lkey = mr->lkey;
	connect_to(qp, t.qpn, IBV_ACCESS_REMOTE_WRITE, IBV_MTU_4096);
	must(write(to, &qp->qp_num, sizeof(qp->qp_num)) == sizeof(qp->qp_num) && read(from, &ready, sizeof(ready)) == sizeof(ready), "a pipe");
	for (int outstanding = 0;; outstanding++) {
		int n = sent++ % 64;

		wr.opcode = n == 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
		wr.wr.rdma.rkey = n == 2 ? t.dm_rkey : t.rkey;
		wr.wr.rdma.remote_addr = n == 2 ? sent / 64 * page % device_memory : t.addr + sent * page % region;
		if (ibv_post_send(qp, &wr, &bad))
			break;
		for (int got; outstanding >= depth - 1 || sent == 5000; outstanding -= got) {
			got = ibv_poll_cq(cq, 1, &wc);
			if (got < 0 || (got && wc.status))
				goto out;
			if (sent == 5000 && !outstanding)
				break;
			if (ringing)
				ring(qp);
		}
		if (sent == 5000)
			puts("running");
	}
out:
	for (;;) /* what is posted is the NIC's */
		if (ringing)
			ring(qp);
		else
			pause();
}

static int fill(size_t mib, const char *file)
{
	size_t bytes = mib << 20, changed = 0;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static char same[page];

	must(memory != MAP_FAILED, "mmap");
	memset(memory, pattern, bytes);
	memset(same, pattern, page);
	puts("filled");
	while (access(file, F_OK))
		usleep(10000);
	for (size_t at = 0; at < bytes; at += page)
		changed += memcmp(memory + at, same, page) != 0;
	printf("%zu of %zu pages changed\n", changed, bytes / page);
	return changed != 0;
}

int main(int argc, char **argv)
{
	int up[2], down[2];
	pid_t pid;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 4 && !strcmp(argv[1], "fill"))
		return fill(atoi(argv[2]), argv[3]);
	must(argc == 4 && !pipe(up) && !pipe(down), "stalled run DEVICE GID-INDEX, or fill MIB FILE");
	gid_index = atoi(argv[3]);
	signal(SIGUSR1, on_usr1);
	signal(SIGUSR2, on_usr2);
	signal(SIGCHLD, SIG_IGN);
	pid = fork();
	must(pid >= 0, "fork");
	if (!pid)
		owner(argv[2], up[1], down[0]);
	printf("writer %d owner %d\n", getpid(), pid);
	writer(argv[2], down[1], up[0]);
}
