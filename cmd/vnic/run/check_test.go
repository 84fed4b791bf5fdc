package run_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

const exampleConfig = "../../../docs/vnic.example.yaml"

func TestCheckListsEveryProblem(t *testing.T) {
	stdout, stderr, code := vnictest.Run(t, "run", "--check=file", "-c", exampleConfig)
	if want := exampleConfig + ": good: host 1, 4 functions, 1 peers\n"; code != 0 || stdout != want || stderr != "" {
		t.Errorf("the example: exit status %d, %q, %q, want %q", code, stdout, stderr, want)
	}
	file := filepath.Join(t.TempDir(), "nic.yaml")
	head := "vnic: configuration " + file + ":\n"
	for _, tc := range []struct{ name, yaml, want string }{
		{
			"unknown key", "nic: {host: 1}\nuplink: {name: up, address: 10.0.0.1/24}\nrmda: {}\n",
			head + `line 3: rmda: unknown key; did you mean "rdma"?` + "\n",
		},
		{
			"every problem at once", "nic: {host: 256}\nuplink: {name: abcdefghijklmnop, mtu: 1500, address: 10.0.0.1/24}\nrdma: {mtu: 4096}\n",
			head + `line 1: nic.host: "256" is out of range; use 1 to 255` + "\n" +
				`line 2: uplink.name: "abcdefghijklmnop" has 16 characters; use at most 15` + "\n" +
				"line 3: rdma.mtu: 4096 does not fit uplink.mtu 1500: with 176 bytes of headers it needs 4272; write 1024 or leave it out, or raise uplink.mtu\n",
		},
		{"impossible value", "nic: {host: 1}\nuplink: {name: up, address: 10.0.0.1/24}\npsp: {version: 4}\n", head + "line 3: psp.version: 4 is not a PSP version; write 0 (AES-GCM-128), 1 (AES-GCM-256), 2 (AES-GMAC-128) or 3 (AES-GMAC-256)\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(tc.yaml), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{{"run", "--check", "-c", file}, {"run", "-c", file}} {
				if stdout, stderr, code := vnictest.Run(t, args...); code != 1 || stdout != "" || stderr != tc.want {
					t.Errorf("%v: exit status %d, %q\n%swant\n%s", args, code, stdout, stderr, tc.want)
				}
			}
		})
	}
	_, stderr, code = vnictest.Run(t, "run", "--check", "-c", "/nowhere.yaml")
	if want := "vnic: configuration: open /nowhere.yaml: no such file or directory; give the path of a file like docs/vnic.example.yaml\n"; code != 1 || stderr != want {
		t.Errorf("exit status %d, %q, want %q", code, stderr, want)
	}
}

// TestCheckFindsWhatTheMachineLacks: --check finds what the machine does not have, and --check=file
// looks at the file alone.
func TestCheckFindsWhatTheMachineLacks(t *testing.T) {
	const all = "../../../device/config/testdata/every-key.yaml"
	_, errs, code := vnictest.Run(t, "run", "--check", "-c", all)
	for _, want := range []string{
		`configuration ` + all + ` is valid, but not for this machine`,
		`uplink.bridge: bridge "vbr0" does not exist`, `pf0.vf1.port.bridge: bridge "gbr1" does not exist`,
		`pf0.vf2.port.netns: network namespace "box2"`, `cm.identity: `, `psp.keylog: `,
	} {
		if code != 1 || !strings.Contains(errs, want) {
			t.Errorf("exit status %d, no %q in\n%s", code, want, errs)
		}
	}
	file := filepath.Join(t.TempDir(), "nic.yaml")
	for text, want := range map[string]string{
		"control: /run/" + strings.Repeat("x", 120):             "has 125 characters; use at most 99",
		"credits: {nic: {request_packet_tx: 0}}":                "credits.nic.request_packet_tx: 0 is less than one packet of 8192 bytes needs, so work would wait forever; use 1 or more",
		"functions: [{pf: 0, credits: {request_buffer_tx: 1}}]": "functions[0].credits.request_buffer_tx: 1 is less than one packet of 8192 bytes needs, so work would wait forever; use 65 or more",
		"functions: [{pf: 0, limits: {qp: 0}}]":                 "functions[0].limits.qp: 0 is out of range; use 1 to 65534",
		"credits: {connection: {data_buffer_tx: 32}}":           "credits.connection.data_buffer_tx: 32 is less",
		"functions: [{pf: 0, tenant: 1, address: 10.1.0.1}, {pf: 1, tenant: 1, address: 10.1.0.2, guarantee: {request_packet_tx: 1024}}]\ncredits: {host: {request_packet_tx: 1024}}": "guarantees leave 0 of 1024 to a function that has none; a packet needs 1",
		"cm: {listen: '127.0.0.1:1', identity: x}\npeers: [{host: 2, underlay: 10.0.0.2, cm: '127.0.0.1:2', identity: lab, tenants: [1]}]":                                            `peers[0].identity: "lab" is not an identity; write the URI in the peer's certificate, as vnic://lab/host/2`,
		"cm: {listen: '127.0.0.1:1', identity: x}\npeers: [{name: b, underlay: 10.0.0.2, cm: '127.0.0.1:2', identity: 'vnic://lab/host/c', tenants: [1]}]":                            `is the identity of NIC c, but the peer is b`,
	} {
		if err := os.WriteFile(file, []byte("nic: {host: 1}\nuplink: {name: up, address: 10.0.0.1/24}\n"+text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := vnictest.Run(t, "run", "--check=file", "-c", file); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s\nexit status %d: %swant %q", text, code, errs, want)
		}
	}
	if _, errs, code := vnictest.Run(t, "run", "--check=files", "-c", file); code != 2 || !strings.Contains(errs, "write --check, or --check=file") {
		t.Errorf("exit status %d: %s", code, errs)
	}
}
