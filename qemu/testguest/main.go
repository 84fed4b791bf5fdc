package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/mdlayher/vsock"

	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

func main() {
	if guestinit.Active() {
		guestinit.Run(os.Args[1:])
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "testguest:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 || os.Args[1] != "echo" {
		return fmt.Errorf("usage: testguest echo PORT, got %q", os.Args)
	}
	port, err := strconv.ParseUint(os.Args[2], 10, 32)
	if err != nil {
		return err
	}
	gpa, err := patternPage()
	if err != nil {
		return err
	}
	c, err := vsock.Dial(vsock.Host, uint32(port), nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := json.NewEncoder(os.Stdout).Encode(map[string]uint64{"pattern": gpa}); err != nil {
		return err
	}
	if err := binary.Write(c, binary.LittleEndian, gpa); err != nil {
		return err
	}
	n, err := io.Copy(c, c)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]int64{"echoed": n})
}
