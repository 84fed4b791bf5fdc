package shard

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/rdma"
)

// TestCountersAreShown checks that everything that the shard's parts count is shown.
func TestCountersAreShown(t *testing.T) {
	counters := newVirtual(t, 1, wire100us).shards[0].View().Counters()
	for r := range dropReasons {
		if _, ok := counters["drop."+r.String()]; !ok {
			t.Errorf("drops for %s are not shown", r)
		}
	}
	for room, stats := range map[string]any{"rdma": rdma.Stats{}, "falcon": falcon.Stats{}, "gateway": gateway.Stats{}} {
		other := map[string]string{ // shown by another name
			"gateway.tunnel_packets": "gateway.tunnel_tx_packets", "gateway.tunnel_bytes": "gateway.tunnel_tx_bytes",
			"gateway.tunnel_in": "gateway.tunnel_rx_packets", "gateway.tunnel_in_bytes": "gateway.tunnel_rx_bytes",
			"rdma.doorbells": "shard.doorbells",
		}
		typ := reflect.TypeOf(stats)
		for _, field := range reflect.VisibleFields(typ) {
			if k := field.Type.Kind(); k != reflect.Uint64 && k != reflect.Int {
				continue // counted by reason, and shown one by one
			}
			name := room + "." + snake(field.Name)
			if o := other[name]; o != "" {
				name = o
			}
			if _, ok := counters[name]; !ok {
				t.Errorf("%s.Stats.%s is not shown as %s", room, field.Name, name)
			}
		}
	}
}

var capital = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

// snake converts RNRTx to rnr_tx.
func snake(name string) string {
	name = strings.NewReplacer("QKeys", "Qkeys", "QPErr", "QpErr", "CQOver", "CqOver", "CIDs", "Cids").Replace(name)
	return strings.ToLower(capital.ReplaceAllString(name, "${1}${3}_${2}${4}"))
}
