package main

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestVersionComesFromTheBuild: a program that was built without the Makefile knows its version from Go.
func TestVersionComesFromTheBuild(t *testing.T) {
	if out, _, code := vnictest.Run(t, "version"); code != 0 || !strings.HasPrefix(out, "vnic ") || !strings.Contains(out, ", go1.") {
		t.Errorf("exit status %d: %s", code, out)
	}
	info := func(module string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: module}, Settings: settings}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef"}
	for want, got := range map[string]built{
		"1.0":                versionOf("1.0", info("v0.9", revision)),
		"v0.9":               versionOf(unknownVersion, info("v0.9", revision)),
		"0123456789ab":       versionOf(unknownVersion, info("(devel)", revision)),
		"0123456789ab-dirty": versionOf(unknownVersion, info("", revision, debug.BuildSetting{Key: "vcs.modified", Value: "true"})),
		unknownVersion:       versionOf(unknownVersion, info("(devel)")),
	} {
		if got.Version != want {
			t.Errorf("%+v, want %s", got, want)
		}
	}
}
