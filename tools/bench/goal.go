package main

import "strconv"

// goals are what figures are to reach: as a multiple of the peer's behind the @, or else
// themselves. Whether that is at least or at most is the metric's direction.
var goals = map[string]float64{
	"sim/goodput_loss1pct":       0.95,
	"sim/goodput_reorder2":       0.97,
	"sim/spurious_retx_reorder2": 0.001,
	"sim/incast32_jain":          0.98,
	"sim/incast32_loss":          0,
	"sim/software_loss10pct":     0.60,
	"sim/hardware_loss5pct":      0.94,
	"sim/hardware_loss10pct":     0.88,
	"sim/pull_loss5pct":          0.85,
	"sim/pull_loss10pct":         0.60,
	"sim/tail_loss1pct":          0.85,
	"sim/long_loss1pct":          0.45,
	"sim/incast64_failed":        0,
	"sim/incast256_jain":         0.98,
	"sim/outage5rtt":             0.60,

	"sim/goodput_loss1pct_200g":        0.985,
	"sim/goodput_writes_loss2pct":      0.97,
	"sim/goodput_writes_loss2pct_200g": 0.88,
	"sim/offered_any24_p99_us":         76,

	"rdma/write64k_shards2_over_1": 1.7,
	"rdma/write64_shards2_over_1":  1.7,
	"credits/quiet_vf_share":       0.95,

	"rdma/write1m_8k_over_4k":            1.2,
	"rdma/write1m_8k_over_4k_singly":     1.7,
	"rdma/write64_8k_over_4k":            0.97,
	"rdma/write64_8k_over_4k_singly":     0.97,
	"rdma/write64_lat_8k_over_4k":        1.03,
	"rdma/write64_lat_8k_over_4k_singly": 1.03,
	"tunnel/seal8k_cpu_over_cipher":      2.2,

	"uplink/tcp_udp_over_tap":                 0.95,
	"uplink/tcp_udp_over_tap_mtu9000":         0.95,
	"uplink/write64k_udp_over_tap":            0.95,
	"uplink/write64k_udp_over_tap_mtu9000":    0.95,
	"uplink/write64_lat_udp_over_tap":         1.1,
	"uplink/write64_lat_udp_over_tap_mtu9000": 1.1,

	"tunnel/ndr64_pps@wireguard-go":   3,
	"tunnel/ndr1400_pps@wireguard-go": 3,
	"tunnel/ping_p50_us@wireguard-go": 0.5,
	"tunnel/tcp_over_limit":           0.65,
	"tunnel/tcp_over_limit_mtu9000":   0.65,
	"tunnel/tcp_shards2_over_1":       1.6,
	"ports/ndr64_pps":                 500_000,
	"ports/ndr1400_pps":               400_000,
	"ports/local64_pps":               2_000_000,
	"ports/local1500_gbps":            15,

	"fleet/move_outage_ms":       200,
	"fleet/watch_cpu_1000_hosts": 0.01,
	"fleet/peer_bytes":           64 << 10,
	"fleet/peers1000_over_100":   12,
	"fleet/memory1000_over_100":  12,

	"record/write64_digest_over_off":  0.85,
	"record/write64_whole_over_off":   0.6,
	"record/write64k_digest_over_off": 0.85,
	"record/write64k_whole_over_off":  0.6,

	"guest/doorbell_vfio_us": 10,
	"guest/vfio_wake_us":     40,

	"roce/rxe_write64k_mbs@rxe":   1.5,
	"roce/rxe_read64k_mbs@rxe":    1.5,
	"roce/rxe_write64_lat_us@rxe": 0.7,

	"iwarp/write64k_gbps":         2,
	"iwarp/write64k_gbps_mtu9000": 6,
	// siw has no checksums with itself.
	"iwarp/siw_nocrc_write64k_mbs@siw":      1.2,
	"iwarp/both_siw_nocrc_write64k_mbs@siw": 1.2,

	"driver/write64k_mbs@rxe":          20,
	"driver/write64_lat_us@rxe":        0.2,
	"driver/send64_lat_us@rxe":         0.2,
	"driver/write64_msgs_per_s@rxe":    20,
	"driver/event_lat_us@rxe":          0.5,
	"driver/nvme_randread4k_iops@rxe":  3,
	"driver/write64_lat_over_guestlib": 1.2,
	"driver/pyverbs_ok@rxe":            1.32, // 114, with 86 of Soft-RoCE
}

// goal is a metric's goal in words; "" if it has none.
func goal(m Metric) string {
	got := m.Value
	want, ok := goals[m.Name]
	if !ok && m.Ratio != nil {
		got = *m.Ratio
		want, ok = goals[m.Name+"@"+m.Peer]
	}
	if !ok {
		return ""
	}
	text, reached := "at most", got <= want
	if m.HigherIsBetter {
		text, reached = "at least", got >= want
	}
	if reached {
		return text + " " + strconv.FormatFloat(want, 'f', -1, 64)
	}
	return text + " " + strconv.FormatFloat(want, 'f', -1, 64) + ": missed"
}
