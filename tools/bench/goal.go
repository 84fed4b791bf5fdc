package main

import "fmt"

// goals are what figures are to reach: as a multiple of their peer's, or themselves where there is no
// peer. Whether that is at least or at most is the metric's direction.
var goals = map[string]float64{
	"roce/rxe_write64k_mbs":   1.5,
	"roce/rxe_read64k_mbs":    1.5,
	"roce/rxe_write64_lat_us": 0.7,

	"driver/write64k_mbs":              20,
	"driver/write64_lat_us":            0.2,
	"driver/send64_lat_us":             0.2,
	"driver/write64_msgs_per_s":        20,
	"driver/event_lat_us":              0.5,
	"driver/nvme_randread4k_iops":      3,
	"driver/write64_lat_over_guestlib": 1.2,
	"driver/pyverbs_ok":                1.32, // 114, with 86 of Soft-RoCE
}

// goal is a metric's goal in words; "" if it has none.
func goal(m Metric) string {
	want, ok := goals[m.Name]
	if !ok {
		return ""
	}
	got := m.Value
	if m.Ratio != nil {
		got = *m.Ratio
	}
	text, reached := "at most", got <= want
	if m.HigherIsBetter {
		text, reached = "at least", got >= want
	}
	if reached {
		return fmt.Sprintf("%s %g", text, want)
	}
	return fmt.Sprintf("%s %g: missed", text, want)
}
