package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
)

// built is what the program knows about how it was built.
type built struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"` // of the revision
	Modified bool   `json:"modified,omitempty"`
}

// versionOf returns the version that the Makefile set, or else the one that go build or go install
// recorded.
func versionOf(given string, info *debug.BuildInfo) (b built) {
	b.Version = given
	if info == nil {
		return b
	}
	b.Go = info.GoVersion
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	if given != unknownVersion {
		return b
	}
	switch {
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		b.Version = info.Main.Version
	case b.Revision != "":
		b.Version = b.Revision[:min(len(b.Revision), 12)]
		if b.Modified {
			b.Version += "-dirty"
		}
	}
	return b
}

const unknownVersion = "unknown"

func thisVersion() built {
	info, _ := debug.ReadBuildInfo()
	return versionOf(version, info)
}

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print the version and how the program was built",
		Args:  cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisVersion()
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), b)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "vnic %s", b.Version)
			if b.Revision != "" {
				fmt.Fprintf(cmd.OutOrStdout(), ", revision %s of %s", b.Revision, b.Time)
			}
			fmt.Fprintf(cmd.OutOrStdout(), ", %s\n", b.Go)
			return nil
		},
	}
	cli.JSONFlag(cmd.Flags(), &asJSON)
	return cmd
}
