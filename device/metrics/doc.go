// Package metrics serves a NIC's counters to Prometheus.
//
//	scrape ─▶ HTTP /metrics ─▶ collector ─▶ Source (the NIC) ─▶ the shard, at one moment
//
// The data path has its own counters; nothing here runs per packet. Names are fixed, labels are
// function, counter, node and reason. The number of label values is bounded: the first MaxFunctions
// functions have their own series, the others are summed under function="other", and connections
// have none.
//
// # Ownership and concurrency
//
// A Server owns its listener. Scrapes come from any goroutine; at most maxScrapes are answered at a
// time.
package metrics
