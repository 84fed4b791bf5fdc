/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * WRITE, READ and FETCH_ADD on the memory that a NIC itself serves (a function with service: memory, docs/driver-guide.md): the first
 * things to try with a new driver, since nothing is needed at the other end.
 *
 *   memory PEER          with the function that VNIC_DEVICE names
 *   memory PEER wrong    with a wrong key: what an error looks like
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vnic.h"

enum { SERVICE = 7, SIZE = 64, WAIT_MS = 60000 };

/* What the service says when it accepts. Numbers are little-endian, as this processor's. */
struct region {
	char magic[8];
	uint64_t addr;
	uint32_t rkey, length;
};

static struct vnic_cq *cq;
static struct vnic_qp *qp;
static struct vnic_mr mr;

/* Carries out one operation. Returns the status of its completion, or -1. */
static int operate(const char *name, uint8_t opcode, uint32_t length, const struct region *r, uint64_t add)
{
	struct vnic_sge sge = vnic_sge(&mr, 0, length);
	struct vnic_send_wr wr = { .wrid = opcode, .opcode = opcode, .flags = VNIC_SEND_SIGNALED, .sgl = &sge, .num_sge = 1,
				   .remote_addr = r->addr, .rkey = r->rkey, .compare_add = add };
	struct vnic_cqe done;

	if (vnic_post_send(qp, &wr) < 0)
		return -1;
	while (!vnic_poll_cq(cq, &done, 1))
		if (vnic_wait_cq(cq, WAIT_MS) <= 0)
			return -1;
	printf("%-9s status %u\n", name, done.status);
	return done.status;
}

static int try(const char *peer, int wrong)
{
	const uint32_t access = VNIC_ACCESS_LOCAL_WRITE;
	struct vnic_device *dev = vnic_open(getenv("VNIC_DEVICE"), 1 << 20);
	struct vnic_qp_attr attr = { .access = access };
	uint8_t gid[16], reply[VNIC_PRIVATE_MAX];
	uint16_t reply_len;
	struct region r;
	uint64_t *words;
	char *text;

	if (!dev || !(text = vnic_alloc(dev, SIZE)) || vnic_alloc_pd(dev, &attr.pdn) < 0 || vnic_reg_mr(dev, attr.pdn, text, SIZE, access, &mr) < 0 ||
	    !(cq = attr.send_cq = vnic_create_cq(dev, 16)) || !(qp = vnic_create_qp(dev, &attr)) || vnic_parse_gid(peer, gid) < 0 ||
	    vnic_connect(qp, gid, SERVICE, NULL, 0, reply, &reply_len, WAIT_MS) < 0)
		return -1;
	memcpy(&r, reply, sizeof r);
	if (reply_len < sizeof r || memcmp(r.magic, "VNICSERV", 8))
		return fprintf(stderr, "%s serves no memory\n", peer), 1;
	printf("connected queue pair %#x, a region of %u bytes\n", vnic_qp_num(qp), r.length);

	r.rkey ^= wrong ? 0x100 : 0;
	strcpy(text, "hello");
	if (operate("WRITE", VNIC_OP_WRITE, 8, &r, 0))
		return 1;
	memset(text, 0, SIZE);
	if (operate("READ", VNIC_OP_READ, 8, &r, 0))
		return 1;
	printf("the memory has \"%s\"\n", text);
	words = (uint64_t *)text;
	if (operate("FETCH_ADD", VNIC_OP_FETCH_ADD, 8, &r, 1))
		return 1;
	printf("it was %#" PRIx64 " before 1 was added\n", words[0]);
	vnic_close(dev);
	return 0;
}

int main(int argc, char **argv)
{
	int status;

	if (argc < 2 || !getenv("VNIC_DEVICE"))
		return fprintf(stderr, "usage: VNIC_DEVICE=URL memory PEER [wrong]\n"), 2;
	status = try(argv[1], argc > 2);
	if (status < 0)
		fprintf(stderr, "%s\n", vnic_error());
	return status != 0;
}
