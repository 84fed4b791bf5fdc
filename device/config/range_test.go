package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cc/rue"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// problemsOf returns the problems of a key that Parse finds.
func problemsOf(t *testing.T, yaml, path string) (list []string) {
	t.Helper()
	_, err := Parse([]byte(yaml))
	var ps Problems
	if err != nil && !errors.As(err, &ps) {
		t.Fatalf("%v\n%s", err, yaml)
	}
	for _, p := range ps {
		if p.Path == path {
			list = append(list, p.What)
		}
	}
	return list
}

// TestTheFirstAndLastValidValuesAreTaken: the first and the last valid value of a key are accepted,
// the values next to them are refused. $ is replaced by the value.
func TestTheFirstAndLastValidValuesAreTaken(t *testing.T) {
	const (
		base   = "nic: {host: 1}\nuplink: {name: vnic1, address: 10.0.0.1/24}\n"
		uplink = "nic: {host: 1}\nuplink: {name: vnic1, address: 10.0.0.1/24, "
		nic    = "uplink: {name: vnic1, address: 10.0.0.1/24}\nnic: {host: 1, "
		ram    = base + "attach: [{type: vsock, ram: [{cid: 3, file: /f, layout: [{address: 8K, size: 8K, offset: 0}, $]}]}]\n"
	)
	path := func(n int) string { return "/" + strings.Repeat("s", n-1) }
	list := func(n int, item string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = strings.ReplaceAll(item, "#", fmt.Sprint(i+1))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	limits := base + "functions: [{pf: 0, limits: {%s: $}}]\n"
	type border struct {
		path, yaml string
		good, bad  []any
	}
	borders := []border{
		{"nic.spin", nic + "spin: $}\n", []any{"0s", "10ms"}, []any{"-1ns", "10000001ns"}},
		{"nic.watchdog", nic + "watchdog: $}\n", []any{"0s", "1s"}, []any{"1ns", "999ms"}},
		{"nic.shards", nic + "shards: $}\n", []any{1, 16}, []any{-1, 17}},
		{"nic.cpu[0]", nic + "cpu: [$]}\n", []any{0, 1023}, []any{-1, 1024}},
		{"nic.cpu", nic + "shards: 2, cpu: $}\n", []any{"[0]", "[0, 1]"}, []any{"[0, 1, 2]"}},
		{"functions[0].shard", nic + "shards: 2}\nfunctions: [{pf: 0, shard: $}]\n", []any{0, 1}, []any{-1, 2}},
		{"uplink.speed", uplink + "speed: $}\n", []any{"10M", "4T"}, []any{"9999999", "4000000000001"}},
		{"uplink.queues", uplink + "queues: $}\n", []any{1, 16}, []any{-1, 17}},
		{"uplink.mtu", uplink + "mtu: $}\nrdma: {mtu: 256}\n", []any{576, 65521}, []any{575, 65522}},
		{"uplink.mtu", "nic: {host: 1}\nuplink: {name: a, address: 'fd00::1/64', mtu: $}\nrdma: {mtu: 256}\n", []any{1280}, []any{1279}},
		{"uplink.name", "nic: {host: 1}\nuplink: {name: $, address: 10.0.0.1/24}\n", []any{"abcdefghijklmno"}, []any{"abcdefghijklmnop"}},
		{"uplink.neighbours", "nic: {host: 1}\nuplink: {name: a, address: 10.0.0.1/16, neighbours: $}\n", []any{list(256, "{address: 10.0.1.#, mac: '02:00:00:00:00:01'}")}, []any{list(257, "{address: 10.0.1.#, mac: '02:00:00:00:00:01'}")}},
		{"uplink.keepalive", "nic: {host: 1}\nuplink: {type: udp, listen: '10.0.0.1:1000', keepalive: $}\n", []any{"0s", "1s", "10m"}, []any{"999ms", "10m0.000000001s", "-1s"}},
		{"uplink.mtu", "nic: {host: 1}\nuplink: {type: udp, listen: '[::1]:1000', mtu: $}\n", []any{1280, 65521}, []any{1279, 65522}},
		{"uplink.impair.rx.delay", uplink + "impair: {rx: {delay: $}}}\n", []any{"0s", "10s"}, []any{"-1ns", "10000000001ns"}},
		{"uplink.impair.rx.rate", uplink + "impair: {rx: {rate: $}}}\n", []any{0, 1000}, []any{1, 999}},
		{"uplink.impair.rx.queue", uplink + "impair: {rx: {queue: $}}}\n", []any{1, 65536}, []any{-1, 65537}},
		{"uplink.impair.rx.loss", uplink + "impair: {rx: {loss: $}}}\n", []any{"0%", "100%", 0, 1}, []any{"-1%", "101%", 1.01, -0.01}},
		{"psp.version", base + "psp: {version: $}\n", []any{0, 3}, []any{4}},
		{"psp.replay_margin", base + "psp: {replay_margin: $}\n", []any{"1ms", "120s"}, []any{"999999ns", "120000000001ns"}},
		{"psp.rotate_every", base + "psp: {rotate_every: $}\n", []any{"0s", "1s", "720h"}, []any{"-1ns", "999ms", "720h1ns"}},
		{"control", base + "control: $\n", []any{path(99)}, []any{path(100)}},
		{"attach[0].socket", base + "attach: [{type: unix, socket: $}]\n", []any{path(107)}, []any{path(108)}},
		{"attach[0].cid", base + "attach: [{type: vhost-user, socket: /s, cid: $}]\n", []any{3, 4294967294}, []any{0, 2, 4294967295}},
		{"attach[0].ram[0].cid", base + "attach: [{type: vsock, ram: [{cid: $, file: /f, layout: [{size: 4K}]}]}]\n", []any{1, 3}, []any{0, 2}},
		{
			"attach[0].ram[0].layout[1]", ram,
			[]any{"{address: 0, size: 8K}", "{address: 16K, size: 4K}", "{address: 1M, size: 4K, offset: 4611686018427383808}"},
			[]any{
				"{address: 0, size: 12K}", "{address: 12K, size: 4K}", "{address: 0, size: 32K}", "{address: 8K, size: 4K}",
				"{address: 1M, size: 4K, offset: 4611686018427387904}", "{address: 1M}",
			},
		},
		{"functions[0].pf", base + "functions: [{pf: $}]\n", []any{0, 15}, []any{16}},
		{"functions[0].vf_count", base + "functions: [{pf: 0, vf_count: $}]\n", []any{1, 4095}, []any{-1, 4096}},
		{"functions[0].vfs[0].vf", base + "functions: [{pf: 0, vf_count: 4095, vfs: [{vf: $}]}]\n", []any{1, 4095}, []any{0, 4096}},
		{"functions[0].vfs[0].vf", base + "functions: [{pf: 0, vf_count: 3, vfs: [{vf: $}]}]\n", []any{1, 3}, []any{4}},
		{"functions[0].dma_window.address", base + "functions: [{pf: 0, dma_window: {address: $, size: 4K}}]\n", []any{0, 4096}, []any{1, 4095}},
		{"functions[0].dma_window.size", base + "functions: [{pf: 0, dma_window: {address: 0, size: $}}]\n", []any{4096, 8192}, []any{0, 4095, 6144}},
		{"functions[0].limits.page_lists", fmt.Sprintf(limits, "page_lists"), []any{"4K", "1G"}, []any{"1073741825"}},
		{"functions[0].limits.read_atomic", fmt.Sprintf(limits, "read_atomic"), []any{1, 128}, []any{0, 129}},
		{"functions[0].limits.qp_entries", fmt.Sprintf(limits, "qp_entries"), []any{1, 1 << abi.MaxQueueLog2}, []any{0, 3, 1<<abi.MaxQueueLog2 + 1}},
		{"functions[0].limits.cq_entries", fmt.Sprintf(limits, "cq_entries"), []any{1, 1 << abi.MaxQueueLog2}, []any{0, 3, 1<<abi.MaxQueueLog2 + 1}},
		{"functions[0].guarantee.data_packet_tx", base + "functions: [{pf: 0, credits: {data_packet_tx: 50}, guarantee: {data_packet_tx: $}}]\n", []any{49, 50}, []any{51}},
		{"credits.host.data_buffer_tx", base + "credits: {nic: {data_buffer_tx: 1000}, host: {data_buffer_tx: $}}\n", []any{999, 1000}, []any{1001}},
		{"functions[0].vfs[0].port.mtu", base + port("{name: p, mtu: $}"), []any{576, 8932}, []any{575, 8933}},
		{"functions[0].vfs[0].port.mtu", base + port("{name: p, mtu: $, addresses: ['fd01::1']}"), []any{1280, 8932}, []any{1279, 8933}},
		{"functions[0].vfs[0].port.addresses", base + port("{name: p, addresses: $}"), []any{list(16, "10.2.0.#")}, []any{list(17, "10.2.0.#")}},
		{"functions[0].vfs[0].port.queues", base + port("{type: vhost-user, socket: /p, queues: $}"), []any{1, 16}, []any{-1, 17}},
		{"functions[0].vfs[0].port.socket", base + port("{type: vhost-user, socket: $}"), []any{path(107)}, []any{path(108)}},
		{"tenants[0].subnets[0]", base + "tenants: [{tenant: 1, subnets: [$]}]\n", []any{"10.0.0.0/8"}, []any{"10.0.0.0/7"}},
		{"falcon.rue.size", base + "falcon: {rue: {size: $}}\n", []any{1, rue.MaxQueue}, []any{0, rue.MaxQueue + 1}},
		{"falcon.cc.min_fcwnd", base + "falcon: {cc: {min_fcwnd: $, max_fcwnd: 4}}\n", []any{3, 4}, []any{5}},
	}
	for _, key := range []string{"req_tx_window", "data_tx_window", "max_txn"} {
		borders = append(borders, border{"falcon." + key, base + "falcon: {" + key + ": $}\n", []any{1, 2, falcon.MaxTxWindow}, []any{0, 3, 2 * falcon.MaxTxWindow}})
	}
	for key, most := range map[string]int{"ack_count": falcon.MaxAckCount, "weight_new": 1 << 10, "weight_retransmit": 1 << 10, "weight_ack": 1 << 10} {
		borders = append(borders, border{"falcon." + key, base + "falcon: {" + key + ": $}\n", []any{1, most}, []any{0, most + 1}})
	}
	for key, most := range map[string]int{"ooo_count": 128, "ar_percent": 100, "max_retransmits": 1 << 16, "turn_bytes": 1 << 20} {
		borders = append(borders, border{"falcon." + key, base + "falcon: {" + key + ": $}\n", []any{0, most}, []any{most + 1}})
	}
	for key, b := range map[string][2]string{
		"ack_timeout": {"1ns", "1s"}, "reorder_time": {"0s", "1s"}, "probe_time": {"1us", "1m"}, "answer_timeout": {"1us", "1h"}, "give_up": {"0s", "1h"},
		"resync_give_up": {"0s", "1h"}, "txn_timeout": {"0s", "1h"}, "rx_timeout": {"0s", "1h"}, "op_gap": {"0s", "1s"},
	} {
		low := map[string]string{"0s": "-1ns", "1ns": "0s", "1us": "999ns"}[b[0]]
		borders = append(borders, border{"falcon." + key, base + "falcon: {" + key + ": $}\n", []any{b[0], b[1]}, []any{low, b[1] + "1ns"}})
	}
	for _, key := range []string{"service", "latency", "interval"} {
		high := map[string]string{"interval": "1h"}[key] + map[bool]string{true: "1s"}[key != "interval"]
		borders = append(borders, border{"falcon.rue." + key, base + "falcon: {rue: {" + key + ": $}}\n", []any{"0s", high}, []any{"-1ns", high + "1ns"}})
	}
	for k := range abi.NumObjects {
		key, most := k.Info().Key, k.Info().Most
		borders = append(borders, border{"functions[0].limits." + key, fmt.Sprintf(limits, key), []any{1, most}, []any{0, most + 1}})
	}
	for _, b := range borders {
		for _, v := range b.good {
			if wrong := problemsOf(t, strings.ReplaceAll(b.yaml, "$", fmt.Sprint(v)), b.path); wrong != nil {
				t.Errorf("%s: %v refused: %q", b.path, v, wrong)
			}
		}
		for _, v := range b.bad {
			if problemsOf(t, strings.ReplaceAll(b.yaml, "$", fmt.Sprint(v)), b.path) == nil {
				t.Errorf("%s: %v accepted", b.path, v)
			}
		}
	}
}

// TestRemedyNamesTheRealRange: for a value that is not a number, the remedy names the range of the
// key: both its ends are accepted, and values beyond them are refused.
func TestRemedyNamesTheRealRange(t *testing.T) {
	const base = "uplink: {name: vnic1, address: 10.0.0.1/24}\nnic: {host: 1}\n"
	vhost := base + "attach: [{type: vhost-user, socket: /s, cid: $}]\n"
	type key struct {
		path, yaml string
		first      int64
		last       uint64
	}
	keys := []key{
		{"nic.host", "uplink: {name: vnic1, address: 10.0.0.1/24}\nnic: {host: $}\n", 1, 255},
		{"nic.shards", "uplink: {name: vnic1, address: 10.0.0.1/24}\nnic: {host: 1, shards: $}\n", 1, 16},
		{"nic.cpu[0]", "uplink: {name: vnic1, address: 10.0.0.1/24}\nnic: {host: 1, cpu: [$]}\n", 0, 1023},
		{"uplink.mtu", "nic: {host: 1}\nrdma: {mtu: 256}\nuplink: {name: vnic1, address: 10.0.0.1/24, mtu: $}\n", 576, 65521},
		{"uplink.queues", "nic: {host: 1}\nuplink: {name: vnic1, address: 10.0.0.1/24, queues: $}\n", 1, 16},
		{"uplink.impair.tx.queue", "nic: {host: 1}\nuplink: {name: vnic1, address: 10.0.0.1/24, impair: {tx: {queue: $}}}\n", 1, 65536},
		{"psp.version", base + "psp: {version: $}\n", 0, 3},
		{"peers[0].host", "uplink: {name: vnic1, address: 10.0.0.1/24}\nnic: {host: 7}\npeers: [{host: $}]\n", 1, 255},
		{"peers[0].tenants[0]", base + "peers: [{host: 2, tenants: [$]}]\n", 1, 1<<32 - 1},
		{"peers[0].functions[0].tenant", base + "peers: [{host: 2, tenants: [1, 4294967295], functions: [{tenant: $, address: 10.0.0.3}]}]\n", 1, 1<<32 - 1},
		{"tenants[0].tenant", base + "tenants: [{tenant: $}]\n", 1, 1<<32 - 1},
		{"functions[0].tenant", base + "functions: [{pf: 0, tenant: $, address: 10.0.0.3}]\n", 1, 1<<32 - 1},
		{"functions[0].pf", base + "functions: [{pf: $}]\n", 0, 15},
		{"functions[0].vf_count", base + "functions: [{pf: 0, vf_count: $}]\n", 0, 4095},
		{"functions[0].vfs[0].vf", base + "functions: [{pf: 0, vf_count: 4095, vfs: [{vf: $}]}]\n", 1, 4095},
		{"functions[0].weight", base + "functions: [{pf: 0, weight: $}]\n", 1, 255},
		{"functions[0].shard", "uplink: {name: vnic1, address: 10.0.0.1/24}\nnic: {host: 1, shards: 16}\nfunctions: [{pf: 0, shard: $}]\n", 0, 15},
		{"functions[0].guest.cid", base + "functions: [{pf: 0, guest: {cid: $}}]\nattach: [{type: vhost-user, socket: /s, cid: 3}, {type: vhost-user, socket: /t, cid: 4294967294}]\n", 3, 1<<32 - 2},
		{"attach[0].cid", vhost, 3, 1<<32 - 2},
		{"attach[0].ram[0].cid", base + "attach: [{type: vsock, ram: [{cid: $, file: /f, layout: [{size: 4K}]}]}]\n", 3, 1<<32 - 1},
		{"functions[0].vfs[0].port.queues", base + port("{type: vhost-user, socket: /p, queues: $}"), 1, 16},
		{"functions[0].limits.read_atomic", base + "functions: [{pf: 0, limits: {read_atomic: $}}]\n", 1, 128},
		{"falcon.rue.size", base + "falcon: {rue: {size: $}}\n", 1, rue.MaxQueue},
		{"falcon.cc.retransmit_limit", base + "falcon: {cc: {retransmit_limit: $}}\n", 0, 255},
	}
	for _, name := range []string{"qp_entries", "cq_entries"} {
		keys = append(keys, key{"functions[0].limits." + name, base + "functions: [{pf: 0, limits: {" + name + ": $}}]\n", 1, 1 << abi.MaxQueueLog2})
	}
	for k := range abi.NumObjects {
		keys = append(keys, key{"functions[0].limits." + k.Info().Key, base + "functions: [{pf: 0, limits: {" + k.Info().Key + ": $}}]\n", 1, uint64(k.Info().Most)})
	}
	for name, ends := range map[string][2]int64{
		"req_tx_window": {1, falcon.MaxTxWindow}, "data_tx_window": {1, falcon.MaxTxWindow}, "max_txn": {1, falcon.MaxTxWindow}, "ack_count": {1, falcon.MaxAckCount},
		"ooo_count": {0, 128}, "ar_percent": {0, 100}, "max_retransmits": {0, 1 << 16}, "weight_new": {1, 1 << 10}, "weight_retransmit": {1, 1 << 10},
		"weight_ack": {1, 1 << 10}, "turn_bytes": {0, 1 << 20},
	} {
		keys = append(keys, key{"falcon." + name, base + "falcon: {" + name + ": $}\n", ends[0], uint64(ends[1])})
	}
	for _, k := range keys {
		with := func(v any) []Problem {
			_, err := Parse([]byte(strings.ReplaceAll(k.yaml, "$", fmt.Sprint(v))))
			var all, here Problems
			if errors.As(err, &all) {
				for _, p := range all {
					if p.Path == k.path {
						here = append(here, p)
					}
				}
			}
			return here
		}
		want := fmt.Sprintf("%d to %d", k.first, k.last)
		for _, v := range []string{"many", "99999999999999999999", "-99999999999999999999", "1.5"} {
			if ps := with(v); len(ps) != 1 || !strings.Contains(ps[0].Remedy, want) {
				t.Errorf("%s: %s: %v, want the remedy %q", k.path, v, ps, want)
			}
		}
		for v, good := range map[any]bool{k.first: true, k.last: true, k.first - 1: false, k.last + 1: false} {
			if v == int64(0) && k.first == 1 {
				continue // of some keys it stands for the default; TestTheFirstAndLastValidValuesAreTaken knows the others
			}
			if ps := with(v); (len(ps) == 0) != good {
				t.Errorf("%s: %v: %v", k.path, v, ps)
			}
		}
	}
}
