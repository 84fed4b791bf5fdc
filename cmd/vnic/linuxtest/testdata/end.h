/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the programs share that do with a queue pair what lines on a TCP connection say, and answer each
 * with a line. All numbers are decimal. Requests and receives are for the start of the memory.
 *
 *   receive COUNT BYTES                       ok
 *   send|write|read COUNT BYTES ADDRESS RKEY  ok
 *   wait COUNT                                COUNT completions: their statuses
 *   kill                                      no answer
 */
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char memory[8 << 20] __attribute__((aligned(4096)));

static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

enum { access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

/* command does what is of one program only, and reports whether it has answered. "ok" is the answer if not. */
static int command(FILE *to, const char *word, const char *rest);

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void register_memory(struct ibv_pd *pd)
{
	must(pd != NULL, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, memory, sizeof memory, access_flags);
	must(mr != NULL, "ibv_reg_mr");
}

/* attributes makes a CQ, and returns the attributes of the queue pair that is to have it. */
static struct ibv_qp_init_attr attributes(struct ibv_context *device)
{
	cq = ibv_create_cq(device, 256, NULL, NULL, 0);
	must(cq != NULL, "ibv_create_cq");
	return (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .send_cq = cq, .recv_cq = cq,
					  .cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 } };
}

/* post posts all together: siw forgets what is posted behind an error. */
static void post(enum ibv_wr_opcode opcode, const char *words)
{
	static struct ibv_send_wr list[64], *bad;
	unsigned count, bytes, rkey;
	unsigned long addr;
	struct ibv_sge sge = { .addr = (unsigned long)memory, .lkey = mr->lkey };

	must(sscanf(words, "%u %u %lu %u", &count, &bytes, &addr, &rkey) == 4 && count >= 1 && count <= 64, words);
	sge.length = bytes;
	for (unsigned i = 0; i < count; i++)
		list[i] = (struct ibv_send_wr){ .next = i + 1 < count ? &list[i + 1] : NULL, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
						.wr.rdma = { .remote_addr = addr, .rkey = rkey } };
	must(!ibv_post_send(qp, list, &bad), "ibv_post_send");
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

static void serve(int conn)
{
	FILE *from = fdopen(conn, "r"), *to = fdopen(dup(conn), "w");
	char line[512], word[16];
	int at;

	must(from && to, "fdopen");
	while (fgets(line, sizeof line, from) && sscanf(line, "%15s%n", word, &at) == 1) {
		const char *rest = line + at;
		int answered = 0;

		if (!strcmp(word, "kill"))
			raise(SIGKILL);
		else if (!strcmp(word, "receive"))
			post_receives(rest);
		else if (!strcmp(word, "send"))
			post(IBV_WR_SEND, rest);
		else if (!strcmp(word, "write"))
			post(IBV_WR_RDMA_WRITE, rest);
		else if (!strcmp(word, "read"))
			post(IBV_WR_RDMA_READ, rest);
		else if ((answered = !strcmp(word, "wait")))
			await(to, atoi(rest));
		else
			answered = command(to, word, rest);
		if (!answered)
			fprintf(to, "ok\n");
		fflush(to);
	}
	fclose(from);
	fclose(to);
}

/* serve_all serves one connection after the other. */
static void serve_all(const char *port)
{
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	must(!bind(listener, (void *)&addr, sizeof addr) && !listen(listener, 1), "listen");
	for (;;) {
		int conn = accept(listener, NULL, NULL);

		must(conn >= 0, "accept");
		serve(conn);
	}
}
