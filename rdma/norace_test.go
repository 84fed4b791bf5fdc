//go:build !race

package rdma

// raceEnabled says whether it watches: what is only long then takes ten times as long.
const raceEnabled = false
