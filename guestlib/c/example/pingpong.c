/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A message there and back, sleeping while it is under way, and then the other operations: WRITE, READ, FETCH_ADD, CMP_SWAP on the server's
 * memory. It speaks with guestlib/examples/pingpong, the same program in Go.
 *
 *   pingpong URL          the server
 *   pingpong URL PEER     the client
 *   pingpong -u ...       over an unreliable connection, which has no READs and atomics: both sides
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "vnic.h"

enum { SERVICE = 5001, ROUNDS = 200, SIZE = 64, WAIT_MS = 60000 };

/* One side. Half of its memory is for sending, half for receiving. */
struct side {
	struct vnic_device *dev;
	struct vnic_cq *cq;
	struct vnic_qp *qp;
	struct vnic_mr mr;
	uint32_t pdn;
	bool unreliable;
};

static int receive(struct side *s)
{
	struct vnic_sge sge = vnic_sge(&s->mr, SIZE, SIZE);
	return vnic_post_recv(s->qp, 0, &sge, 1);
}

static int prepare(struct side *s, const char *url)
{
	const uint32_t access = VNIC_ACCESS_LOCAL_WRITE | VNIC_ACCESS_REMOTE_WRITE | VNIC_ACCESS_REMOTE_READ | VNIC_ACCESS_REMOTE_ATOMIC;
	struct vnic_qp_attr attr = { .access = access, .type = s->unreliable ? VNIC_QP_TYPE_UC : VNIC_QP_TYPE_RC };
	void *memory;
	s->dev = vnic_open(url, 4 << 20);
	if (!s->dev || !(memory = vnic_alloc(s->dev, 2 * SIZE)) || vnic_alloc_pd(s->dev, &attr.pdn) < 0 ||
	    vnic_reg_mr(s->dev, attr.pdn, memory, 2 * SIZE, access, &s->mr) < 0 || !(s->cq = vnic_create_cq(s->dev, 128)))
		return -1;
	attr.send_cq = s->cq;
	s->pdn = attr.pdn;
	attr.privileged = !s->unreliable;
	s->qp = vnic_create_qp(s->dev, &attr);
	return s->qp ? receive(s) : -1; /* before the connection: the peer may send at once */
}

/* Waits for a completion. */
static int next(struct side *s, struct vnic_cqe *wc)
{
	while (!vnic_poll_cq(s->cq, wc, 1))
		if (vnic_wait_cq(s->cq, WAIT_MS) <= 0)
			return -1;
	if (wc->status)
		fprintf(stderr, "work request %" PRIu64 ": status %u\n", wc->wrid, wc->status);
	return wc->status ? -1 : 0;
}

/* Sends the first n bytes. Every 32nd asks for a completion, so that the queue gets its room back. */
static int send_text(struct side *s, int i, int n)
{
	struct vnic_sge sge = vnic_sge(&s->mr, 0, (uint32_t)n);
	struct vnic_send_wr wr = { .wrid = 1, .opcode = VNIC_OP_SEND, .flags = i % 32 ? 0 : VNIC_SEND_SIGNALED, .sgl = &sge, .num_sge = 1 };
	return vnic_post_send(s->qp, &wr);
}

/* Waits for a message, passing over completions of sends. */
static int message(struct side *s, char text[SIZE + 1])
{
	struct vnic_cqe wc;
	do
		if (next(s, &wc) < 0)
			return -1;
	while (wc.opcode != VNIC_WC_OP_RECV);
	memcpy(text, (char *)s->mr.addr + SIZE, wc.byte_len);
	text[wc.byte_len] = 0;
	return receive(s);
}

static int server(struct side *s)
{
	struct vnic_request request;
	char priv[64], text[SIZE + 1];
	int n = snprintf(priv, sizeof priv, "%" PRIxPTR " %x", (uintptr_t)s->mr.addr, s->mr.rkey);
	if (vnic_listen(s->dev, SERVICE) < 0 || vnic_get_request(s->dev, &request, WAIT_MS) <= 0 ||
	    vnic_accept(s->qp, &request, priv, (uint16_t)n, WAIT_MS) < 0)
		return -1;
	for (int i = 0; i < ROUNDS; i++)
		if (message(s, text) < 0 || send_text(s, i, snprintf(s->mr.addr, SIZE, "pong to %.40s", text)) < 0)
			return -1;
	for (struct vnic_async_event e; vnic_get_event(s->dev, &e, WAIT_MS) == 1;)
		if (e.type == VNIC_EVENT_DISCONNECTED)
			return 0; /* the client has everything */
	return -1;
}

/* Does one operation on the server's memory and waits for it. */
static int operate(struct side *s, uint8_t opcode, uint64_t addr, uint32_t rkey, uint64_t compare_add, uint64_t swap)
{
	struct vnic_cqe wc;
	struct vnic_sge sge = vnic_sge(&s->mr, 0, 8);
	struct vnic_send_wr wr = { .wrid = 2, .opcode = opcode, .flags = VNIC_SEND_SIGNALED, .sgl = &sge, .num_sge = 1, .remote_addr = addr,
				   .rkey = rkey, .compare_add = compare_add, .swap = swap };
	if (vnic_post_send(s->qp, &wr) < 0)
		return -1;
	do
		if (next(s, &wc) < 0)
			return -1;
	while (wc.wrid != 2);
	return 0;
}

/* Gives the function its link-local address as a second name, and takes it away. */
static int names(struct side *s)
{
	const struct vnic_info *i = vnic_get_info(s->dev);
	const uint8_t *m = i->mac, local[16] = { 0xfe, 0x80, [8] = m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5] };
	uint8_t gid[16];
	if (vnic_query_gid(s->dev, 0, gid) < 0 || memcmp(gid, i->gid, sizeof gid) || vnic_add_gid(s->dev, 1, local) < 0 ||
	    vnic_query_gid(s->dev, 1, gid) < 0 || memcmp(gid, local, sizeof gid) || vnic_del_gid(s->dev, 1) < 0)
		return -1;
	return vnic_query_gid(s->dev, 1, gid) == 0 ? -1 : 0;
}

/* Registers memory by work requests, and writes from it to the server. */
static int fast(struct side *s, uint64_t addr, uint32_t rkey)
{
	struct vnic_mr own = s->mr;
	struct vnic_fast_mr f;
	struct vnic_cqe wc;
	uint8_t *memory = vnic_alloc(s->dev, 2 * VNIC_PAGE_SIZE);
	if (!memory || vnic_alloc_mr(s->dev, s->pdn, 2, &f) < 0)
		return -1;
	for (int i = 0; i < 3; i++) {
		struct vnic_send_wr take = { .wrid = 4, .opcode = VNIC_OP_LOCAL_INV, .flags = VNIC_SEND_SIGNALED };
		if (vnic_post_reg_mr(s->qp, 3, VNIC_SEND_SIGNALED, &f, memory + VNIC_PAGE_SIZE - 4 * i, SIZE, VNIC_ACCESS_LOCAL_WRITE) < 0 || next(s, &wc) < 0 || wc.wrid != 3)
			return -1;
		s->mr = f.mr;
		memcpy(f.mr.addr, "register", 8);
		if (operate(s, VNIC_OP_WRITE, addr, rkey, 0, 0) < 0)
			return -1;
		memset(f.mr.addr, 0, 8);
		if (operate(s, VNIC_OP_READ, addr, rkey, 0, 0) < 0 || memcmp(f.mr.addr, "register", 8))
			return -1;
		take.imm = f.mr.rkey;
		if (vnic_post_send(s->qp, &take) < 0 || next(s, &wc) < 0 || wc.wrid != 4)
			return -1;
	}
	s->mr = own;
	if (vnic_free_mr(s->dev, &f) < 0)
		return -1;
	vnic_free(s->dev, memory, 2 * VNIC_PAGE_SIZE);
	return 0;
}

static int others(struct side *s, uint64_t addr, uint32_t rkey)
{
	uint64_t *word = s->mr.addr;
	if (names(s) < 0 || (!s->unreliable && fast(s, addr, rkey) < 0))
		return -1;
	*word = 40;
	if (s->unreliable)
		return operate(s, VNIC_OP_WRITE, addr, rkey, 0, 0);
	if (operate(s, VNIC_OP_WRITE, addr, rkey, 0, 0) < 0 || operate(s, VNIC_OP_FETCH_ADD, addr, rkey, 2, 0) < 0 || *word != 40 ||
	    operate(s, VNIC_OP_CMP_SWAP, addr, rkey, 42, 7) < 0 || *word != 42)
		return -1;
	*word = 0;
	if (operate(s, VNIC_OP_READ, addr, rkey, 0, 0) < 0 || *word != 7)
		return -1;
	printf("WRITE, FETCH_ADD, CMP_SWAP and READ did what they should\n");
	return 0;
}

static int client(struct side *s, const char *peer)
{
	uint8_t gid[16];
	char reply[VNIC_PRIVATE_MAX + 1] = "", text[SIZE + 1], want[SIZE + 1];
	uint64_t addr;
	uint32_t rkey;
	int tries = 0, err;
	if (vnic_parse_gid(peer, gid) < 0)
		return -1;
	do { /* the server may not be there yet */
		err = vnic_connect(s->qp, gid, SERVICE, NULL, 0, reply, NULL, WAIT_MS);
		if (err < 0 && (errno == ECONNREFUSED || errno == EHOSTUNREACH))
			nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
		else
			break;
	} while (++tries < WAIT_MS / 100);
	if (err < 0)
		return -1;
	struct timespec start, end;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 0; i < ROUNDS; i++) {
		int n = snprintf(s->mr.addr, SIZE, "ping %d", i);
		snprintf(want, sizeof want, "pong to ping %d", i);
		if (send_text(s, i, n) < 0 || message(s, text) < 0)
			return -1;
		if (strcmp(text, want)) {
			fprintf(stderr, "got \"%s\", want \"%s\"\n", text, want);
			return -1;
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%d round trips of %d bytes, %.1f µs each\n", ROUNDS, SIZE,
	       ((double)(end.tv_sec - start.tv_sec) * 1e6 + (double)(end.tv_nsec - start.tv_nsec) / 1e3) / ROUNDS);
	if (sscanf(reply, "%" SCNx64 " %x", &addr, &rkey) != 2)
		return -1;
	return others(s, addr, rkey);
}

int main(int argc, char **argv)
{
	struct side s = { 0 };
	if (argc > 1 && !strcmp(argv[1], "-u")) {
		s.unreliable = true;
		argc--;
		argv++;
	}
	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: pingpong [-u] URL [PEER]\n");
		return 2;
	}
	int err = prepare(&s, argv[1]);
	if (err == 0)
		err = argc > 2 ? client(&s, argv[2]) : server(&s);
	if (err < 0)
		fprintf(stderr, "pingpong: %s\n", vnic_error());
	else if (vnic_destroy_qp(s.qp) < 0 || vnic_destroy_cq(s.cq) < 0 || vnic_dereg_mr(s.dev, &s.mr) < 0) {
		fprintf(stderr, "pingpong: %s\n", vnic_error());
		err = -1;
	}
	vnic_close(s.dev);
	return err < 0;
}
