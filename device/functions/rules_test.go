package functions

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/queues/abi"
)

const ruled = `
nic: {host: 1}
control: /run/c.sock
uplink: {name: up0, bridge: br0, address: 10.99.0.1/24, mtu: 1500, mac: 02:00:00:00:00:01}
rdma: {mtu: 1024}
cm: {listen: "127.0.0.1:1", identity: unused}
peers:
  - {host: 2, underlay: 10.99.0.2, cm: "127.0.0.1:2", identity: vnic://test/host/2, tenants: [7], functions: [{tenant: 7, address: 10.0.0.21}]}
tenants: [{tenant: 7, subnets: [10.0.0.0/24], routers: [10.0.0.254]}]
attach: [{type: unix, name: bare, socket: /run/a.sock}]
functions:
  - pf: 0
    vf_count: 4
    vfs:
      - {vf: 1, tenant: 7, address: 10.0.0.11, mac: 02:00:00:00:00:11, port: {mode: bridged, name: vp1, mac: 02:00:00:00:00:12, addresses: [10.0.0.12]}}
      - {vf: 2, tenant: 8, address: 10.0.0.11, guest: {unix: bare}, port: {type: vhost-user, name: vp2, socket: /run/p.sock}}
`

// TestRulesOfTheFileHoldWhileItRuns checks that operators are refused exactly the settings that the
// check of a configuration file refuses.
func TestRulesOfTheFileHoldWhileItRuns(t *testing.T) {
	const free = "tenant: 7, address: 10.0.0.13"
	port := func(is string) string { return free + ", port: {" + is + "}" }
	for name, tc := range map[string]struct {
		file   string            // the settings of VF 3 in a file
		set    map[string]string // the same settings, made by an operator
		status abi.Status
	}{
		"nothing wrong":             {free, map[string]string{"tenant": "7", "address": "10.0.0.13"}, abi.StatusOK},
		"a peer's address":          {"tenant: 7, address: 10.0.0.21", map[string]string{"tenant": "7", "address": "10.0.0.21"}, abi.StatusAddressInUse},
		"in another tenant":         {"tenant: 8, address: 10.0.0.21", map[string]string{"tenant": "8", "address": "10.0.0.21"}, abi.StatusOK},
		"a router's address":        {"tenant: 7, address: 10.0.0.254", map[string]string{"tenant": "7", "address": "10.0.0.254"}, abi.StatusAddressInUse},
		"another's address":         {"tenant: 7, address: 10.0.0.11", map[string]string{"tenant": "7", "address": "10.0.0.11"}, abi.StatusAddressInUse},
		"another port's address":    {"tenant: 7, address: 10.0.0.12", map[string]string{"tenant": "7", "address": "10.0.0.12"}, abi.StatusAddressInUse},
		"no station's address":      {"tenant: 7, address: 224.0.0.1", map[string]string{"tenant": "7", "address": "224.0.0.1"}, abi.StatusInvalidArgument},
		"the uplink's MAC":          {free + ", mac: 02:00:00:00:00:01", map[string]string{"tenant": "7", "address": "10.0.0.13", "mac": "02:00:00:00:00:01"}, abi.StatusAddressInUse},
		"another's MAC":             {free + ", mac: 02:00:00:00:00:11", map[string]string{"tenant": "7", "address": "10.0.0.13", "mac": "02:00:00:00:00:11"}, abi.StatusAddressInUse},
		"another port's MAC":        {free + ", mac: 02:00:00:00:00:12", map[string]string{"tenant": "7", "address": "10.0.0.13", "mac": "02:00:00:00:00:12"}, abi.StatusAddressInUse},
		"a port with a peer's":      {port("mode: direct, name: vp3, addresses: [10.0.0.21]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.0.21"}, abi.StatusAddressInUse},
		"a port with another's":     {port("mode: direct, name: vp3, addresses: [10.0.0.12]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.0.12"}, abi.StatusAddressInUse},
		"a port with its own":       {port("mode: direct, name: vp3, addresses: [10.0.0.13]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.0.13"}, abi.StatusAddressInUse},
		"a port outside":            {port("mode: direct, name: vp3, addresses: [10.0.1.1]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.1.1"}, abi.StatusInvalidArgument},
		"a port":                    {port("mode: direct, name: vp3, addresses: [10.0.0.14]"), map[string]string{"port": "mode=direct,name=vp3,address=10.0.0.14"}, abi.StatusOK},
		"a port like another":       {port("mode: direct, name: vp1"), map[string]string{"port": "mode=direct,name=vp1"}, abi.StatusAddressInUse},
		"the same elsewhere":        {port("mode: direct, name: vp1, netns: box"), map[string]string{"port": "mode=direct,name=vp1,netns=box"}, abi.StatusAddressInUse},
		"a port like the uplink":    {port("mode: direct, name: up0"), map[string]string{"port": "mode=direct,name=up0"}, abi.StatusAddressInUse},
		"a port like the bridge":    {port("mode: direct, name: br0"), map[string]string{"port": "mode=direct,name=br0"}, abi.StatusAddressInUse},
		"a port's MAC of another":   {port("mode: bridged, name: vp3, mac: 02:00:00:00:00:12"), map[string]string{"port": "mode=bridged,name=vp3,mac=02:00:00:00:00:12"}, abi.StatusAddressInUse},
		"a port on the uplink's":    {port("mode: bridged, name: vp3, bridge: br0"), map[string]string{"port": "mode=bridged,name=vp3,bridge=br0"}, abi.StatusInvalidArgument},
		"a port that is too long":   {port("mode: direct, name: vp3, mtu: 1500"), map[string]string{"port": "mode=direct,name=vp3,mtu=1500"}, abi.StatusInvalidArgument},
		"another port's socket":     {port("type: vhost-user, name: vp3, socket: /run/p.sock"), map[string]string{"port": "type=vhost-user,name=vp3,socket=/run/p.sock"}, abi.StatusAddressInUse},
		"an attachment's socket":    {port("type: vhost-user, name: vp3, socket: /run/a.sock"), map[string]string{"port": "type=vhost-user,name=vp3,socket=/run/a.sock"}, abi.StatusAddressInUse},
		"the control socket":        {port("type: vhost-user, name: vp3, socket: /run/c.sock"), map[string]string{"port": "type=vhost-user,name=vp3,socket=/run/c.sock"}, abi.StatusAddressInUse},
		"a guest that there is not": {free + ", guest: {unix: nobody}", map[string]string{"tenant": "7", "address": "10.0.0.13", "guest": "unix:nobody"}, abi.StatusInvalidArgument},
	} {
		_, inFile := config.Parse([]byte(ruled + fmt.Sprintf("      - {vf: 3, %s}\n", tc.file)))
		c, err := config.Parse([]byte(ruled))
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if tc.set["port"] != "" {
			tc.set["tenant"], tc.set["address"] = "7", "10.0.0.13"
		}
		edit, err := r.ByOperator(id(0, 3), &control.FunctionChange{Set: tc.set})
		if err == nil {
			_, err = r.Change(id(0, 3), edit)
		}
		if (inFile == nil) != (tc.status == abi.StatusOK) || StatusOf(err) != tc.status {
			t.Errorf("%s: want %s\nin the file: %v\nwhile it runs: %v", name, tc.status, inFile, err)
		}
	}
}
