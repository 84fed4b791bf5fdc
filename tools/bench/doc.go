// Command bench runs the project's benchmarks and reports their metrics.
//
//	go run -C tools ./bench -root .. [-rooms falcon,tunnel,ports,rdma,roce,driver,record,credits,fleet,guest|all] [-benchtime 1s] [-count 1]
//
// A benchmark reports a metric by b.ReportMetric(v, "room/name_suffix"); the
// suffix gives the unit (see metric.go). The value of a competitor measured in
// the same run is reported under the same name with "@peer" after it. Other
// benchmarks appear with ns/op, B/op and allocs/op only.
//
// The metrics are printed as a table and written to build/bench.json as a list
// of {"name","value","unit","higher_is_better","peer","peer_value","ratio"};
// ratio is value divided by peer_value. With -count > 1 the value is the median.
// The table says what some are to reach (goal.go); a line above it says what figures depend on beside
// the code (machine.go).
package main
