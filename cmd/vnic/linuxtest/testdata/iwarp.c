// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The verbs program of the tests with siw, which end.h describes. Its connections are rdma_cm's.
 *
 *   iwarp PORT
 *
 *   listen IP PORT                        ok
 *   answer PRIVATE                        waits for a call and accepts: as call
 *   refuse PRIVATE                        waits for a call and rejects it: its private data
 *   call IP PORT PRIVATE                  "ok", the peer's private data, ADDRESS RKEY; or the event that ended the attempt
 *   fill SEED BYTES                       fills the memory
 *   check SEED BYTES                      ok, or the first byte that is wrong
 *   disconnect                            ok
 *   gone                                  ok, when the connection is over
 *
 * Private data has no blanks; "-" is none.
 */
#include "end.h"
#include <netdb.h>
#include <rdma_cma.h>
#include <stdint.h>

static struct rdma_event_channel *events;
static struct rdma_cm_id *listener, *id;
static struct ibv_pd *pd;

enum { reads = 16, patience = 60000 };

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
	struct ibv_qp_init_attr init = attributes(with->verbs);

	id = with;
	pd = ibv_alloc_pd(id->verbs);
	register_memory(pd);
	must(!rdma_create_qp(id, pd, &init), "rdma_create_qp");
	qp = id->qp;
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

static int command(FILE *to, const char *word, const char *rest)
{
	char host[64], port[16], private[257];

	if (!strcmp(word, "answer") || !strcmp(word, "refuse")) {
		must(sscanf(rest, "%256s", private) == 1, word);
		answer(to, private, *word == 'a');
		return 1;
	}
	if (!strcmp(word, "call")) {
		must(sscanf(rest, "%63s %15s %256s", host, port, private) == 3, word);
		call(to, host, port, private);
		return 1;
	}
	if (!strcmp(word, "check")) {
		check(to, rest);
		return 1;
	}
	if (!strcmp(word, "listen")) {
		must(sscanf(rest, "%63s %15s", host, port) == 2, word);
		start_listening(host, port);
	} else if (!strcmp(word, "fill"))
		fill(rest);
	else if (!strcmp(word, "gone"))
		gone();
	else
		must(!strcmp(word, "disconnect") && !rdma_disconnect(id), word);
	return 0;
}

int main(int argc, char **argv)
{
	must(argc == 2, "iwarp PORT");
	events = rdma_create_event_channel();
	must(events != NULL, "rdma_create_event_channel");
	serve_all(argv[1]);
}
