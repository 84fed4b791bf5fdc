// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The verbs program of the tests with siw: it does with a connection of rdma_cm what lines on a TCP
 * connection say, and answers each with a line. All numbers are decimal.
 *
 *   iwarp PORT
 *
 *   listen IP PORT                        ok
 *   answer PRIVATE                        waits for a call, posts 16 receives and accepts: as call
 *   refuse PRIVATE                        waits for a call and rejects it: its private data
 *   call IP PORT PRIVATE                  "ok", the peer's private data, ADDRESS RKEY; or the event that ended the attempt
 *   fill SEED BYTES                       fills the memory
 *   check SEED BYTES                      ok, or the first byte that is wrong
 *   receive COUNT BYTES                   posts receives
 *   send|write|read COUNT BYTES ADDRESS RKEY
 *   wait COUNT                            COUNT completions: their statuses
 *   disconnect                            ok
 *   gone                                  ok, when the connection is over
 *   kill                                  no answer
 *
 * Private data has no blanks; "-" is none. Requests and receives are for the start of the memory.
 */
#include <infiniband/verbs.h>
#include <netdb.h>
#include <rdma_cma.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char memory[8 << 20] __attribute__((aligned(4096)));

static struct rdma_event_channel *events;
static struct rdma_cm_id *listener, *id;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;

enum { reads = 16, patience = 60000 };

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* pattern is a byte of what a seed stands for. The test has the same. */
static char pattern(uint32_t seed, uint32_t i)
{
	return (i * 2654435761u + seed * 40503u) >> 24;
}

static void end_connection(void)
{
	if (!id)
		return;
	rdma_destroy_qp(id);
	must(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "destroy");
	rdma_destroy_id(id);
	id = NULL;
}

/* begin makes a queue pair for a connection. */
static void begin(struct rdma_cm_id *with)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1 } };

	id = with;
	pd = ibv_alloc_pd(id->verbs);
	must(pd != NULL, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	must(mr != NULL, "ibv_reg_mr");
	cq = ibv_create_cq(id->verbs, 256, NULL, NULL, 0);
	must(cq != NULL, "ibv_create_cq");
	init.send_cq = init.recv_cq = cq;
	must(!rdma_create_qp(id, pd, &init), "rdma_create_qp");
}

/* next returns the next event, and its connection's private data in said. */
static enum rdma_cm_event_type next(struct rdma_cm_id **of, char said[257])
{
	struct rdma_cm_event *e;
	enum rdma_cm_event_type type;

	must(!rdma_get_cm_event(events, &e), "rdma_get_cm_event");
	type = e->event;
	strcpy(said, "-");
	if (e->param.conn.private_data_len) {
		memcpy(said, e->param.conn.private_data, e->param.conn.private_data_len);
		said[e->param.conn.private_data_len] = 0;
	}
	*of = e->id;
	rdma_ack_cm_event(e);
	return type;
}

static struct rdma_conn_param params(const char *private)
{
	struct rdma_conn_param p = { .responder_resources = reads, .initiator_depth = reads, .retry_count = 7, .rnr_retry_count = 7 };

	if (strcmp(private, "-")) {
		p.private_data = private;
		p.private_data_len = strlen(private);
	}
	return p;
}

static struct addrinfo *resolve(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *list;

	must(!getaddrinfo(host, port, &hints, &list), "getaddrinfo");
	return list;
}

static void start_listening(const char *host, const char *port)
{
	must(!rdma_create_id(events, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
	must(!rdma_bind_addr(listener, resolve(host, port)->ai_addr) && !rdma_listen(listener, 8), "rdma_listen");
}

static void established(FILE *to, const char *said)
{
	fprintf(to, "ok %s %lu %u\n", said, (unsigned long)memory, mr->rkey);
}

static void post_receives(const char *words)
{
	unsigned count, bytes;

	must(sscanf(words, "%u %u", &count, &bytes) == 2, words);
	while (count--) {
		struct ibv_sge sge = { .addr = (unsigned long)memory, .length = bytes, .lkey = mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

		must(!ibv_post_recv(id->qp, &wr, &bad), "ibv_post_recv");
	}
}

static void answer(FILE *to, const char *private, int accept)
{
	struct rdma_conn_param p = params(private);
	struct rdma_cm_id *of;
	char said[257], nothing[257];

	end_connection();
	while (next(&of, said) != RDMA_CM_EVENT_CONNECT_REQUEST)
		;
	if (!accept) {
		must(!rdma_reject(of, p.private_data, p.private_data_len), "rdma_reject");
		rdma_destroy_id(of);
		fprintf(to, "ok %s\n", said);
		return;
	}
	begin(of);
	post_receives("16 64");
	must(!rdma_accept(id, &p), "rdma_accept");
	must(next(&of, nothing) == RDMA_CM_EVENT_ESTABLISHED, "accepted, and not established");
	established(to, said);
}

static void call(FILE *to, const char *host, const char *port, const char *private)
{
	struct rdma_conn_param p = params(private);
	struct rdma_cm_id *of;
	enum rdma_cm_event_type got;
	char said[257];

	end_connection();
	must(!rdma_create_id(events, &of, NULL, RDMA_PS_TCP), "rdma_create_id");
	must(!rdma_resolve_addr(of, NULL, resolve(host, port)->ai_addr, patience), "rdma_resolve_addr");
	must(next(&of, said) == RDMA_CM_EVENT_ADDR_RESOLVED, "the address is not resolved");
	must(!rdma_resolve_route(of, patience), "rdma_resolve_route");
	must(next(&of, said) == RDMA_CM_EVENT_ROUTE_RESOLVED, "the route is not resolved");
	begin(of);
	must(!rdma_connect(id, &p), "rdma_connect");
	got = next(&of, said);
	if (got == RDMA_CM_EVENT_ESTABLISHED)
		established(to, said);
	else
		fprintf(to, "%s %s\n", rdma_event_str(got), said);
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

		must(!ibv_post_send(id->qp, &wr, &bad), "ibv_post_send");
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

static void fill(const char *words)
{
	unsigned seed, bytes;

	must(sscanf(words, "%u %u", &seed, &bytes) == 2, words);
	for (unsigned i = 0; i < bytes; i++)
		memory[i] = pattern(seed, i);
}

static void check(FILE *to, const char *words)
{
	unsigned seed, bytes;

	must(sscanf(words, "%u %u", &seed, &bytes) == 2, words);
	for (unsigned i = 0; i < bytes; i++)
		if (memory[i] != pattern(seed, i)) {
			fprintf(to, "byte %u of %u is %d, want %d\n", i, bytes, memory[i], pattern(seed, i));
			return;
		}
	fprintf(to, "ok\n");
}

static void gone(void)
{
	struct rdma_cm_id *of;
	char said[257];

	while (next(&of, said) != RDMA_CM_EVENT_DISCONNECTED)
		;
}

static void serve(int conn)
{
	FILE *from = fdopen(conn, "r"), *to = fdopen(dup(conn), "w");
	char line[512], word[16], host[64], port[16], private[257];
	int at;

	must(from && to, "fdopen");
	while (fgets(line, sizeof line, from) && sscanf(line, "%15s%n", word, &at) == 1) {
		const char *rest = line + at;

		if (!strcmp(word, "kill"))
			raise(SIGKILL);
		else if (!strcmp(word, "answer") || !strcmp(word, "refuse")) {
			must(sscanf(rest, "%256s", private) == 1, line);
			answer(to, private, *word == 'a');
		} else if (!strcmp(word, "call")) {
			must(sscanf(rest, "%63s %15s %256s", host, port, private) == 3, line);
			call(to, host, port, private);
		} else if (!strcmp(word, "check"))
			check(to, rest);
		else if (!strcmp(word, "wait"))
			await(to, atoi(rest));
		else {
			if (!strcmp(word, "listen")) {
				must(sscanf(rest, "%63s %15s", host, port) == 2, line);
				start_listening(host, port);
			} else if (!strcmp(word, "fill"))
				fill(rest);
			else if (!strcmp(word, "receive"))
				post_receives(rest);
			else if (!strcmp(word, "send"))
				post(IBV_WR_SEND, rest);
			else if (!strcmp(word, "write"))
				post(IBV_WR_RDMA_WRITE, rest);
			else if (!strcmp(word, "read"))
				post(IBV_WR_RDMA_READ, rest);
			else if (!strcmp(word, "gone"))
				gone();
			else
				must(!strcmp(word, "disconnect") && !rdma_disconnect(id), line);
			fprintf(to, "ok\n");
		}
		fflush(to);
	}
	fclose(from);
	fclose(to);
}

int main(int argc, char **argv)
{
	int one = 1, control = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in addr = { .sin_family = AF_INET };

	must(argc == 2, "iwarp PORT");
	addr.sin_port = htons(atoi(argv[1]));
	events = rdma_create_event_channel();
	must(events != NULL, "rdma_create_event_channel");
	setsockopt(control, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	must(!bind(control, (void *)&addr, sizeof addr) && !listen(control, 1), "listen");
	for (;;) {
		int conn = accept(control, NULL, NULL);

		must(conn >= 0, "accept");
		serve(conn);
	}
}
