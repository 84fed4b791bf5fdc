/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The smallest whole driver: from finding the device to the first completion, on nothing but vnic_abi.h and Linux. docs/driver-guide.md
 * walks through it. As root in a guest: driver. Without a VM: driver /path/of/unix.sock.
 *
 * Its queue pair is connected to itself, so that one function is enough: what it sends, it receives. With the word peer behind, it prints
 * who it is and reads who the other end is: start it so at both ends, and give each what the other has printed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <linux/vm_sockets.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "vnic_abi.h"

#define CHECK(ok, what) \
	do { \
		if (!(ok)) { \
			perror(what); \
			exit(1); \
		} \
	} while (0)

/* Memory: one page for each purpose. A device that wants n pages of a queue or region is told of them by a page list. */
enum { PAGE = VNIC_PAGE_SIZE, ASQ = 0, ACQ, CQ, SQ, RQ, DATA, LIST, LIST2, PAGES };

static uint8_t *memory;
static uint64_t address[PAGES]; /* device address of each page */
static int dev;                 /* control stream */

static uint8_t *page(int n) { return memory + n * PAGE; }

static void send_all(const void *p, size_t n) { CHECK(send(dev, p, n, MSG_NOSIGNAL) == (ssize_t)n, "control stream"); }

static void receive_all(void *p, size_t n) { CHECK(recv(dev, p, n, MSG_WAITALL) == (ssize_t)n, "control stream"); }

/* [1] In a guest: memory that is pinned first and whose frame numbers are read then. */
static void attach_guest(void)
{
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED, "mmap");
	madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE);
	memset(memory, 0, PAGES * PAGE);
	struct io_uring_params params = { 0 };
	struct iovec v = { memory, PAGES * PAGE };
	int ring = (int)syscall(SYS_io_uring_setup, 1, &params); /* stays open: closing it ends the pin */
	CHECK(ring >= 0 && syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &v, 1) == 0, "pin");
	int map = open("/proc/self/pagemap", O_RDONLY);
	CHECK(map >= 0 && pread(map, address, sizeof address, (off_t)((uintptr_t)memory / PAGE * 8)) == sizeof address, "pagemap");
	close(map);
	for (int i = 0; i < PAGES; i++)
		address[i] = (address[i] & ((UINT64_C(1) << 55) - 1)) * PAGE;

	struct sockaddr_vm a = { .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = VNIC_PORT };
	dev = socket(AF_VSOCK, SOCK_STREAM, 0);
	CHECK(dev >= 0 && connect(dev, (struct sockaddr *)&a, sizeof a) == 0, "vsock to the NIC");
}

/* [1] On the NIC's host: a sealed memfd, passed with the preamble of docs/attach.md. */
static void attach_unix(const char *path)
{
	struct {
		char magic[8];
		uint32_t regions, zero;
		uint64_t addr, size, offset;
	} p = { { 'V', 'N', 'I', 'C', 'M', 'E', 'M', '1' }, 1, 0, 0x10000, PAGES * PAGE, 0 };
	int fd = memfd_create("driver", MFD_ALLOW_SEALING);
	CHECK(fd >= 0 && ftruncate(fd, PAGES * PAGE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "memfd");
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(memory != MAP_FAILED, "mmap");
	for (int i = 0; i < PAGES; i++)
		address[i] = p.addr + (uint64_t)i * PAGE;

	struct sockaddr_un a = { .sun_family = AF_UNIX };
	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	dev = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(dev >= 0 && connect(dev, (struct sockaddr *)&a, sizeof a) == 0, path);
	struct iovec v = { &p, sizeof p };
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)] = { 0 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	*CMSG_FIRSTHDR(&m) = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd) };
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
	CHECK(sendmsg(dev, &m, 0) == (ssize_t)sizeof p, "memory");
	uint32_t answer[2];
	receive_all(answer, sizeof answer);
	CHECK(answer[0] == VNIC_STATUS_OK, "memory refused");
}

/* [2] A request of the control stream and its reply. What else comes meanwhile is dropped: this driver needs no events. */
static void call(uint16_t type, const void *body, size_t size, void *reply, size_t reply_size)
{
	static uint64_t tag;
	uint8_t m[VNIC_MAX_MESSAGE];
	struct vnic_msg_header h = { .length = (uint32_t)(sizeof h + size), .type = type, .tag = ++tag };
	memcpy(m, &h, sizeof h);
	memcpy(m + sizeof h, body, size);
	send_all(m, h.length);
	do {
		receive_all(&h, sizeof h);
		receive_all(m, h.length - sizeof h);
		CHECK(h.type != VNIC_MSG_ERROR, "the device ended the session");
	} while (h.tag != tag);
	memcpy(reply, m, reply_size);
}

static uint64_t read_reg(uint32_t offset, uint32_t width)
{
	struct vnic_reg_read r = { offset, width };
	struct vnic_reg_reply reply;
	call(VNIC_MSG_REG_READ, &r, sizeof r, &reply, sizeof reply);
	CHECK(reply.status == VNIC_STATUS_OK, "register read");
	return reply.value;
}

static void write_reg(uint32_t offset, uint32_t width, uint64_t value)
{
	struct vnic_reg_write w = { offset, width, value };
	struct vnic_reg_reply reply;
	call(VNIC_MSG_REG_WRITE, &w, sizeof w, &reply, sizeof reply);
	CHECK(reply.status == VNIC_STATUS_OK, "register write");
}

static void doorbell(uint8_t kind, uint32_t queue, uint32_t index)
{
	struct {
		struct vnic_msg_header h;
		struct vnic_doorbell d;
	} m = { { .length = sizeof m, .type = VNIC_MSG_DOORBELL }, { .kind = kind, .queue = queue, .index = index } };
	send_all(&m, sizeof m);
}

/* An entry is there when its phase is that of the pass; nothing of it is read before (DRV-703). */
static void wait_phase(const uint8_t *tail, int pass)
{
	while (!(atomic_load_explicit((_Atomic uint64_t *)tail, memory_order_acquire) & VNIC_PHASE) == !(pass % 2))
		usleep(50);
}

/* [4] One command after the other, polling its completion. */
static void command(uint16_t opcode, const void *params, size_t size, void *result, size_t result_size)
{
	static uint32_t n;
	enum { ENTRIES = 2 };
	struct vnic_admin_cmd cmd = { .opcode = opcode, .id = n };
	struct vnic_admin_cqe cqe;
	memcpy(cmd.params, params, size);
	const uint8_t *answer = page(ACQ) + VNIC_QUEUE_HEADER_SIZE + n % ENTRIES * sizeof cqe;
	memcpy(page(ASQ) + VNIC_QUEUE_HEADER_SIZE + n % ENTRIES * sizeof cmd, &cmd, sizeof cmd);
	n++;
	atomic_store_explicit((_Atomic uint32_t *)page(ASQ), n, memory_order_release);
	doorbell(VNIC_DOORBELL_ADMIN, 0, n);
	wait_phase(answer + VNIC_ADMIN_CQE_TAIL_OFFSET, (int)((n - 1) / ENTRIES));
	memcpy(&cqe, answer, sizeof cqe);
	atomic_store_explicit((_Atomic uint32_t *)page(ACQ), n, memory_order_release); /* its slot is free again */
	if (cqe.status) {
		fprintf(stderr, "command %u: status %u\n", opcode, cqe.status);
		exit(1);
	}
	memcpy(result, cqe.result, result_size);
}

/* A page list, in a page of its own, with the one page n. */
static uint64_t list_of(int n, int list)
{
	memcpy(page(list), &address[n], sizeof address[n]);
	return address[list];
}

static void modify(struct vnic_modify_qp m) { command(VNIC_ADMIN_OP_MODIFY_QP, &m, sizeof m, &m, 0); }

/* Makes the first entry of a queue the device's (DRV-603): the entry, then the producer, then the doorbell. */
static void post(int queue, const void *wqe, size_t size, struct vnic_sge sge, uint8_t kind, uint32_t qpn)
{
	memcpy(page(queue) + VNIC_QUEUE_HEADER_SIZE, wqe, size);
	memcpy(page(queue) + VNIC_QUEUE_HEADER_SIZE + size, &sge, sizeof sge);
	atomic_store_explicit((_Atomic uint32_t *)page(queue), 1, memory_order_release);
	doorbell(kind, qpn, 1);
}

int main(int argc, char **argv)
{
	int peer = argc > 1 && !strcmp(argv[argc - 1], "peer");
	argc -= peer;

	/* [1] Find the device. */
	if (argc > 1)
		attach_unix(argv[1]);
	else
		attach_guest();

	/* [2] Say hello: agree on version and features, get a function. */
	struct vnic_hello hello = { .major = VNIC_VERSION_MAJOR, .minor = VNIC_VERSION_MINOR, .function = VNIC_FUNCTION_ASSIGNED,
				    .features = VNIC_FEATURE_EXTENDED_VERBS, .driver = "driver.c" };
	struct vnic_hello_reply reply;
	call(VNIC_MSG_HELLO, &hello, sizeof hello, &reply, sizeof reply);
	if (reply.status) {
		fprintf(stderr, "hello: status %u\n", reply.status);
		return 1;
	}
	printf("function %#x, ABI %u.%u, features %#llx\n", reply.function, reply.major, reply.minor, (unsigned long long)reply.features);

	/* [3] Give it admin queues, enable it, see it become ready. */
	write_reg(VNIC_REG_ADMIN_SQ, 8, list_of(ASQ, LIST));
	write_reg(VNIC_REG_ADMIN_CQ, 8, list_of(ACQ, LIST2));
	write_reg(VNIC_REG_ADMIN_ENTRIES, 4, 2);
	write_reg(VNIC_REG_CONTROL, 4, VNIC_CONTROL_ENABLE);
	while (read_reg(VNIC_REG_STATE, 4) != VNIC_STATE_READY)
		usleep(1000);

	/* [4] A protection domain and a region of memory in it. */
	struct vnic_alloc_pd_result pd;
	command(VNIC_ADMIN_OP_ALLOC_PD, "", 0, &pd, sizeof pd);
	struct vnic_reg_mr reg = { .pdn = pd.pdn, .access = VNIC_ACCESS_LOCAL_WRITE, .iova = (uintptr_t)page(DATA), .length = PAGE,
				   .pages = list_of(DATA, LIST), .levels = 1 };
	struct vnic_reg_mr_result mr;
	command(VNIC_ADMIN_OP_REG_MR, &reg, sizeof reg, &mr, sizeof mr);

	/* [5] A completion queue and a queue pair, two entries each. */
	struct vnic_create_cq create_cq = { .log2_entries = 1, .levels = 1, .pages = list_of(CQ, LIST) };
	struct vnic_create_cq_result cq;
	command(VNIC_ADMIN_OP_CREATE_CQ, &create_cq, sizeof create_cq, &cq, sizeof cq);
	struct vnic_create_qp create_qp = {
		.pdn = pd.pdn, .send_cq = cq.cqn, .recv_cq = cq.cqn, .type = VNIC_QP_TYPE_RC, .sq_log2_entries = 1, .rq_log2_entries = 1,
		.sq_log2_stride = 7, .rq_log2_stride = 5, .max_send_sge = 1, .max_recv_sge = 1, .sq_levels = 1, .rq_levels = 1,
		.sq_pages = list_of(SQ, LIST), .rq_pages = list_of(RQ, LIST2),
	};
	struct vnic_create_qp_result qp;
	command(VNIC_ADMIN_OP_CREATE_QP, &create_qp, sizeof create_qp, &qp, sizeof qp);

	/* [6] Connect it, to itself or to the other end: INIT, RTR, RTS with the attributes that the table of docs/abi section 9 asks for. */
	uint64_t hi = read_reg(VNIC_REG_GID_HI, 8), lo = read_reg(VNIC_REG_GID_LO, 8);
	uint32_t to = qp.qpn;
	if (peer) {
		printf("for the other end: %016" PRIx64 " %016" PRIx64 " %" PRIx32 "\n", hi, lo, qp.qpn);
		fflush(stdout);
		CHECK(scanf("%" SCNx64 " %" SCNx64 " %" SCNx32, &hi, &lo, &to) == 3, "what the other end has printed");
	}
	struct vnic_modify_qp rtr = {
		.qpn = qp.qpn, .state = VNIC_QP_STATE_RTR, .dest_qpn = to, .path_mtu = VNIC_MTU1024, .min_rnr_timer = 12,
		.mask = VNIC_QP_ATTR_STATE | VNIC_QP_ATTR_AV | VNIC_QP_ATTR_PATH_MTU | VNIC_QP_ATTR_DEST_QPN | VNIC_QP_ATTR_RQPSN |
			VNIC_QP_ATTR_MAX_DEST_RD_ATOMIC | VNIC_QP_ATTR_MIN_RNR_TIMER,
	};
	for (int i = 0; i < 8; i++) { /* the registers are big-endian numbers */
		rtr.dgid[i] = (uint8_t)(hi >> (56 - 8 * i));
		rtr.dgid[8 + i] = (uint8_t)(lo >> (56 - 8 * i));
	}
	modify((struct vnic_modify_qp){ .qpn = qp.qpn, .state = VNIC_QP_STATE_INIT, .mask = VNIC_QP_ATTR_STATE });
	modify(rtr);
	modify((struct vnic_modify_qp){
		.qpn = qp.qpn, .state = VNIC_QP_STATE_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7,
		.mask = VNIC_QP_ATTR_STATE | VNIC_QP_ATTR_TIMEOUT | VNIC_QP_ATTR_RETRY_CNT | VNIC_QP_ATTR_RNR_RETRY | VNIC_QP_ATTR_SQPSN |
			VNIC_QP_ATTR_MAX_RD_ATOMIC,
	});

	/* [7] A receive, then a send. */
	char *out = (char *)page(DATA), *in = out + PAGE / 2;
	int n = sprintf(out, "hello, vnic");
	struct vnic_recv_wqe recv_wqe = { .wrid = 1, .num_sge = 1 };
	post(RQ, &recv_wqe, sizeof recv_wqe, (struct vnic_sge){ (uintptr_t)in, PAGE / 2, mr.lkey }, VNIC_DOORBELL_RQ, qp.qpn);
	struct vnic_send_wqe send_wqe = { .wrid = 2, .opcode = VNIC_OP_SEND, .flags = VNIC_SEND_SIGNALED, .num_sge = 1 };
	post(SQ, &send_wqe, sizeof send_wqe, (struct vnic_sge){ (uintptr_t)out, (uint32_t)n, mr.lkey }, VNIC_DOORBELL_SQ, qp.qpn);

	/* [8] The completions. */
	for (int i = 0; i < 2; i++) {
		struct vnic_cqe cqe;
		const uint8_t *entry = page(CQ) + VNIC_QUEUE_HEADER_SIZE + i * sizeof cqe;
		wait_phase(entry + VNIC_CQE_TAIL_OFFSET, 0);
		memcpy(&cqe, entry, sizeof cqe);
		printf("work request %llu: status %u, %u bytes\n", (unsigned long long)cqe.wrid, cqe.status, cqe.byte_len);
		atomic_store_explicit((_Atomic uint32_t *)page(CQ), (uint32_t)(i + 1), memory_order_release); /* its slot is free again */
	}
	printf("received: %.*s\n", n, in);
	fflush(stdout);
	while (peer && getchar() != EOF) /* the other end may still wait for an acknowledgement: stay until the input ends */
		;
	return memcmp(in, out, (size_t)n) != 0;
}
