package config

import (
	"runtime"
	"strings"
	"testing"
)

// TestFunctionsAreSpreadOverTheShards: functions are distributed over the shards, except those that are pinned. Invalid
// values are refused with a remedy.
func TestFunctionsAreSpreadOverTheShards(t *testing.T) {
	c, err := Parse([]byte(minimal))
	if err != nil || c.NIC.Shards != max(1, min(runtime.NumCPU()/2, 16)) {
		t.Fatalf("%d shards by default: %v", c.NIC.Shards, err)
	}
	c, err = Parse([]byte(`
nic: {host: 1, shards: 3, cpu: [4, 5]}
uplink: {name: vnic1, address: 10.0.0.1/24}
functions:
  - pf: 0
    shard: 2
    vfs: [{vf: 1}, {vf: 2, shard: 0}]
  - {pf: 1}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		pf    uint8
		vf    uint16
		shard int
	}{{0, 0, 2}, {0, 1, 1}, {0, 2, 0}, {0, 3, 0}, {0, 4, 1}, {1, 0, 1}, {1, 1, 2}} {
		if got := c.ShardOf()(f.pf, f.vf); got != f.shard {
			t.Errorf("pf%d.vf%d on shard %d, want %d", f.pf, f.vf, got, f.shard)
		}
	}
	for text, want := range map[string]string{
		"shards: 17":              "nic.shards: 17 is out of range; use 1 to 16, or leave it out",
		"shards: -1":              "nic.shards: -1 is out of range",
		"shards: 2, cpu: [1,2,3]": "nic.cpu: 3 processors are listed, but the NIC has 2 threads; list at most 2, or raise nic.shards",
	} {
		_, err := Parse([]byte(strings.Replace(minimal, "host: 1", "host: 1, "+text, 1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	_, err = Parse([]byte(strings.Replace(minimal, "host: 1", "host: 1, shards: 4", 1) + "credits: {nic: {request_packet_tx: 3}, host: {request_packet_tx: 3}}\n"))
	if err == nil || !strings.Contains(err.Error(), "credits.nic.request_packet_tx: 3 is less than one packet of 8192 bytes needs on each of 4 shards; use 4 or more, lower nic.shards, or leave it out") {
		t.Error(err)
	}
	_, err = Parse([]byte(strings.Replace(minimal, "host: 1", "host: 1, shards: 2", 1) + "functions: [{pf: 0, shard: 2}]\n"))
	if err == nil || !strings.Contains(err.Error(), "functions[0].shard: 2 is not a shard of the NIC; use 0 to 1, or raise nic.shards") {
		t.Error(err)
	}
}
