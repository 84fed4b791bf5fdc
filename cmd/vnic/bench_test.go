package main

import (
	"regexp"
	"strconv"
	"testing"
)

// BenchmarkGuests reports what the demo's two QEMU guests measure, the mean of
// both directions: WRITE of 64 bytes from post to completion, one at a time, and
// of 64 KiB.
func BenchmarkGuests(b *testing.B) {
	requireGuests(b)
	for b.Loop() {
		d := startDemo(b)
		d.succeeded()
		text := d.text.String()
		b.ReportMetric(column(b, text, `WRITE +64 B +\d+ +([\d.]+) µs`), "guest/write64_lat_us")
		b.ReportMetric(column(b, text, `WRITE +64 KiB +\d+ .* ([\d.]+) MB/s`), "guest/write64k_mbs")
	}
}

// column is the mean of a number in the demo's table, of both guests.
func column(b *testing.B, table, row string) (mean float64) {
	b.Helper()
	found := regexp.MustCompile(`(?m)^ *guest [12] +`+row).FindAllStringSubmatch(table, -1)
	if len(found) != 2 {
		b.Fatalf("%d rows like %q in\n%s", len(found), row, table)
	}
	for _, m := range found {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		mean += v / float64(len(found))
	}
	return mean
}
