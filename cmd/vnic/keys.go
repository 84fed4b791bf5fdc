package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/device/cmlink"
)

func keysCommand() *cobra.Command {
	keys := &cobra.Command{Use: "keys", Short: "identities of the connection managers, and PSP keys"}
	var dir, domain string
	var asJSON bool
	initKeys := &cobra.Command{
		Use:   "init HOST [HOST ...]",
		Short: "make a certificate authority and one identity per host number",
		Long: `Makes ca.pem, ca.key and host-N.pem, host-N.key for each host number.
A host needs ca.pem and its own pair; keep ca.key away from the hosts.
Existing files are never overwritten.`,
		Example: "  vnic keys init --dir keys --domain lab 1 2",
		Args:    arguments(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hosts, err := hostNumbers(args)
			if err != nil {
				return err
			}
			if err := cmlink.Init(dir, domain, hosts); err != nil {
				return err
			}
			made := make([]identity, len(hosts))
			for i, h := range hosts {
				made[i] = identity{h, cmlink.URI(domain, h), dir}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), made)
			}
			for _, m := range made {
				fmt.Fprintf(cmd.OutOrStdout(), "host %d: %s in %s\n", m.Host, m.Identity, m.Dir)
			}
			return nil
		},
	}
	initKeys.Flags().StringVar(&dir, "dir", "keys", "folder to write to")
	initKeys.Flags().StringVar(&domain, "domain", "lab", "name shared by NICs that trust this authority")
	jsonFlag(initKeys.Flags(), &asJSON)
	keys.AddCommand(initKeys, rotateKeysCommand())
	return keys
}

// identity is one that `vnic keys init` made.
type identity struct {
	Host     uint8  `json:"host"`
	Identity string `json:"identity"`
	Dir      string `json:"dir"`
}

func rotateKeysCommand() *cobra.Command {
	var o asking
	rotate := &cobra.Command{
		Use:   "rotate",
		Short: "replace the PSP keys of a running NIC; traffic goes on",
		Long: `Makes a new PSP master key and hands every peer a new key under it. What peers
seal with the old ones is accepted until they have switched. It is refused
while a peer has not confirmed the last rotation.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := o.client().RotateKeys(cmd.Context())
			if err != nil {
				return err
			}
			return o.print(cmd, r, func(w io.Writer) {
				fmt.Fprintf(w, "generation %d: %d keys are being replaced\n", r.Generation, r.Keys)
			})
		},
	}
	o.flags(rotate.Flags())
	return rotate
}

func hostNumbers(args []string) ([]uint8, error) {
	var hosts []uint8
	for _, a := range args {
		n, err := strconv.ParseUint(a, 10, 8)
		if err != nil || n == 0 {
			return nil, usagef("host %q: a host number is 1 to 255", a)
		}
		hosts = append(hosts, uint8(n))
	}
	return hosts, nil
}
