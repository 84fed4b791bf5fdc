// Package metrics shows what a NIC counts to Prometheus.
//
//	scrape ─▶ HTTP /metrics ─▶ collector ─▶ Source (the NIC) ─▶ the shard, at one moment
//
// The data path counts in counters of its own; nothing here is touched per
// packet. Names are fixed, labels are function, counter, node and reason. Their
// values are bounded: the first MaxFunctions functions have series of their own,
// the others are summed under function="other", and connections have none.
//
// # Ownership and concurrency
//
// A Server owns its listener. Scrapes come from any goroutine; at most
// maxScrapes are answered at one time.
package metrics
