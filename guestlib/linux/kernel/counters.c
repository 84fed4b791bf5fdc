// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Counters of the function (rdma statistic, hw_counters in sysfs), by the names of the ABI. */
#include "vnic.h"

static const struct rdma_stat_desc vnic_counters[] = {
	[VNIC_COUNTER_TX_PACKETS]		= { .name = "tx_pkts" },
	[VNIC_COUNTER_TX_BYTES]			= { .name = "tx_bytes" },
	[VNIC_COUNTER_RX_PACKETS]		= { .name = "rx_pkts" },
	[VNIC_COUNTER_RX_BYTES]			= { .name = "rx_bytes" },
	[VNIC_COUNTER_TX_READS]			= { .name = "tx_read_requests" },
	[VNIC_COUNTER_RX_READS]			= { .name = "rx_read_requests" },
	[VNIC_COUNTER_POSTED]			= { .name = "send_wrs" },
	[VNIC_COUNTER_COMPLETIONS]		= { .name = "completions" },
	[VNIC_COUNTER_COMPLETION_ERRORS]	= { .name = "cqe_error" },
	[VNIC_COUNTER_FLUSHED]			= { .name = "cqe_flush_error" },
	[VNIC_COUNTER_SENT_RNR]			= { .name = "send_rnr_err" },
	[VNIC_COUNTER_RECEIVED_RNR]		= { .name = "rcvd_rnr_err" },
	[VNIC_COUNTER_REFUSED]			= { .name = "rx_refused_requests" },
	[VNIC_COUNTER_DATAGRAMS_LOST]		= { .name = "datagrams_lost" },
	[VNIC_COUNTER_QKEY_VIOLATIONS]		= { .name = "qkey_violations" },
	[VNIC_COUNTER_QP_ERRORS]		= { .name = "qp_errors" },
	[VNIC_COUNTER_CQ_OVERFLOWS]		= { .name = "cq_overflows" },
	[VNIC_COUNTER_DOORBELLS]		= { .name = "doorbells" },
	[VNIC_COUNTER_CREDIT_WAITS]		= { .name = "credit_waits" },
	[VNIC_COUNTER_RATE_WAITS]		= { .name = "rate_waits" },
	[VNIC_COUNTER_TIMEOUTS]			= { .name = "local_ack_timeout_err" },
	[VNIC_COUNTER_MISSING]			= { .name = "packet_seq_err" },
	[VNIC_COUNTER_RETRANSMITS]		= { .name = "roce_retransmits" },
	[VNIC_COUNTER_MARKED]			= { .name = "np_ecn_marked_roce_packets" },
	[VNIC_COUNTER_NOTIFICATIONS_SENT]	= { .name = "np_cnp_sent" },
	[VNIC_COUNTER_NOTIFICATIONS_HANDLED]	= { .name = "rp_cnp_handled" },
};

struct rdma_hw_stats *vnic_alloc_hw_port_stats(struct ib_device *ibdev, u32 port)
{
	return rdma_alloc_hw_stats_struct(vnic_counters, ARRAY_SIZE(vnic_counters),
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

/* Reads all counters, thirteen by each command. Those that the device lacks stay 0. */
int vnic_get_hw_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats, u32 port, int index)
{
	struct vnic_fn *fn = to_fn(ibdev);
	struct vnic_counters r = { .total = cpu_to_le16(1) };
	struct vnic_query_counters p = {};
	int i, n = 0, err;
	__le64 v;

	while (n < min_t(int, stats->num_counters, le16_to_cpu(r.total))) {
		p.first = cpu_to_le16(n);
		err = vnic_command(fn, VNIC_ADMIN_OP_QUERY_COUNTERS, &p, sizeof(p), &r, sizeof(r));
		if (err)
			return err;
		for (i = 0; i < sizeof(r.values) / 8 && n < stats->num_counters; i++, n++) {
			memcpy(&v, r.values + 8 * i, sizeof(v));
			stats->value[n] = le64_to_cpu(v);
		}
	}
	return stats->num_counters;
}
