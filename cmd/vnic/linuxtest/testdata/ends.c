// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The verbs program of TestLongRoCEEnds: it does with a queue pair what lines on a TCP connection
 * say, and answers each with a line. All numbers are decimal, a GID is 32 hexadecimal digits.
 *
 *   ends DEVICE GID-INDEX PORT
 *
 *   open                                            QPN PSN ADDRESS RKEY GID of a new queue pair
 *   connect QPN PSN GID TIMEOUT RETRY-CNT RNR-RETRY as far as RTS
 *   receive COUNT BYTES                             posts receives
 *   send|write|read COUNT BYTES ADDRESS RKEY        posts requests
 *   wait COUNT                                      COUNT completions: their statuses
 *   state                                           of the queue pair
 *   error                                           moves it to ERR
 *   kill                                            no answer
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char memory[1 << 20] __attribute__((aligned(4096)));

static struct ibv_context *device;
static int gid_index;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

enum { first_psn = 0xfffff0, access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (; list && *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			device = ibv_open_device(*list);
	must(device != NULL, name);
	pd = ibv_alloc_pd(device);
	must(pd != NULL, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, memory, sizeof memory, access_flags);
	must(mr != NULL, "ibv_reg_mr");
}

static void open_qp(FILE *to)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access_flags };
	union ibv_gid gid;

	if (qp)
		must(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq), "destroy");
	cq = ibv_create_cq(device, 256, NULL, NULL, 0);
	must(cq != NULL, "ibv_create_cq");
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	must(qp != NULL, "ibv_create_qp");
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	must(!ibv_query_gid(device, 1, gid_index, &gid), "ibv_query_gid");
	fprintf(to, "%u %u %lu %u ", qp->qp_num, first_psn, (unsigned long)memory, mr->rkey);
	for (int i = 0; i < 16; i++)
		fprintf(to, "%02x", gid.raw[i]);
	fprintf(to, "\n");
}

static void connect_qp(const char *words)
{
	char text[33];
	unsigned qpn, psn, timeout, retries, rnrs;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 16, .min_rnr_timer = 12,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64, .sgid_index = gid_index } } };

	must(sscanf(words, "%u %u %32s %u %u %u", &qpn, &psn, text, &timeout, &retries, &rnrs) == 6, words);
	for (int i = 0; i < 16; i++)
		must(sscanf(text + 2 * i, "%2hhx", &attr.ah_attr.grh.dgid.raw[i]) == 1, text);
	attr.dest_qp_num = qpn;
	attr.rq_psn = psn;
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = first_psn;
	attr.timeout = timeout;
	attr.retry_cnt = retries;
	attr.rnr_retry = rnrs;
	attr.max_rd_atomic = 16;
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void post(enum ibv_wr_opcode opcode, const char *words)
{
	unsigned count, bytes, rkey;
	unsigned long addr;

	must(sscanf(words, "%u %u %lu %u", &count, &bytes, &addr, &rkey) == 4, words);
	while (count--) {
		struct ibv_sge sge = { .addr = (unsigned long)memory, .length = bytes, .lkey = mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode,
					  .wr.rdma = { .remote_addr = addr, .rkey = rkey } }, *bad;

		must(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	}
}

static void post_receives(const char *words)
{
	unsigned count, bytes;

	must(sscanf(words, "%u %u", &count, &bytes) == 2, words);
	while (count--) {
		struct ibv_sge sge = { .addr = (unsigned long)memory, .length = bytes, .lkey = mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

		must(!ibv_post_recv(qp, &wr, &bad), "ibv_post_recv");
	}
}

static void await(FILE *to, int count)
{
	struct ibv_wc wc;

	while (count > 0) {
		int n = ibv_poll_cq(cq, 1, &wc);

		must(n >= 0, "ibv_poll_cq");
		if (n)
			fprintf(to, "%d%s", wc.status, --count ? " " : "");
		else
			usleep(1000); /* the one processor is the kernel's too */
	}
	fprintf(to, "\n");
}

static void state(FILE *to)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	must(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
	fprintf(to, "%d\n", attr.qp_state);
}

static void serve(int conn)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	FILE *from = fdopen(conn, "r"), *to = fdopen(dup(conn), "w");
	char line[256], word[16];
	int at;

	must(from && to, "fdopen");
	while (fgets(line, sizeof line, from) && sscanf(line, "%15s%n", word, &at) == 1) {
		if (!strcmp(word, "kill"))
			raise(SIGKILL);
		else if (!strcmp(word, "open"))
			open_qp(to);
		else if (!strcmp(word, "wait"))
			await(to, atoi(line + at));
		else if (!strcmp(word, "state"))
			state(to);
		else {
			if (!strcmp(word, "connect"))
				connect_qp(line + at);
			else if (!strcmp(word, "receive"))
				post_receives(line + at);
			else if (!strcmp(word, "send"))
				post(IBV_WR_SEND, line + at);
			else if (!strcmp(word, "write"))
				post(IBV_WR_RDMA_WRITE, line + at);
			else if (!strcmp(word, "read"))
				post(IBV_WR_RDMA_READ, line + at);
			else
				must(!strcmp(word, "error") && !ibv_modify_qp(qp, &error, IBV_QP_STATE), line);
			fprintf(to, "ok\n");
		}
		fflush(to);
	}
	fclose(from);
	fclose(to);
}

int main(int argc, char **argv)
{
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in addr = { .sin_family = AF_INET };

	must(argc == 4, "ends DEVICE GID-INDEX PORT");
	gid_index = atoi(argv[2]);
	addr.sin_port = htons(atoi(argv[3]));
	open_device(argv[1]);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	must(!bind(listener, (void *)&addr, sizeof addr) && !listen(listener, 1), "listen");
	for (;;) {
		int conn = accept(listener, NULL, NULL);

		must(conn >= 0, "accept");
		serve(conn);
	}
}
