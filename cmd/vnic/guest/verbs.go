package guest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// verbsPrograms runs unmodified verbs programs from Debian between the two guests, over the Linux
// driver. The kernel takes over the function that guestlib has used until then.
type verbsPrograms struct {
	Module  string     // path of vnic.ko
	Address netip.Addr // of this guest's function and its interface
	Peer    string     // address of the other
	Serve   bool       // this guest runs the servers, otherwise the clients
}

// verbsProgram is one program.
type verbsProgram struct {
	Name           string
	server, client string              // arguments; {gid}: the index of the function's GID, {peer}: the other guest
	did            func(string) string // summarizes the client's output; "" if the program failed
}

var VerbsPrograms = []verbsProgram{
	{"ib_write_bw", "-F -x {gid} -s 65536 -n 300", "-F -x {gid} -s 65536 -n 300 {peer}", wroteAt},
	{"rping", "-s -C 10", "-c -C 10 -v -V -a {peer}", pinged},
}

const (
	// nextPort is the TCP port on which the guest with the servers learns that a client has ended.
	nextPort = 5203
	// programPatience is the time limit of a client with all its retries.
	programPatience = time.Minute
)

// run does the work of one guest. A program that fails is a result, not an error.
func (v *verbsPrograms) run(ctx context.Context, say func(workload.Output)) error {
	if err := v.load(); err != nil {
		return fmt.Errorf("the Linux driver: %w", err)
	}
	gid, err := v.ready(ctx)
	if err != nil {
		return fmt.Errorf("the Linux driver: %w", err)
	}
	device, _ := filepath.Glob("/sys/class/infiniband/*")
	say(workload.Output{Kind: workload.KindProgress, Text: fmt.Sprintf("vnic.ko is loaded, the function is RDMA device %s of the kernel", filepath.Base(device[0]))})
	if v.Serve {
		return v.serve(ctx, gid)
	}
	for _, p := range VerbsPrograms {
		r := v.client(ctx, p, gid)
		say(workload.Output{Kind: workload.KindProgram, Program: &r})
		tell(ctx, v.Peer, nextPort)
	}
	return ctx.Err()
}

// load loads the driver, and binds to it the PCI functions that guestlib has left bound to
// vfio-pci.
func (v *verbsPrograms) load() error {
	f, err := os.Open(v.Module)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w; the kernel's log says why", v.Module, err)
	}
	if err := guestinit.OfferWindows(); err != nil {
		return err
	}
	const bus = "/sys/bus/pci/"
	taken, err := filepath.Glob(bus + "drivers/vfio-pci/0000:*")
	for _, dir := range taken {
		at := filepath.Base(dir)
		err = errors.Join(err,
			os.WriteFile(bus+"devices/"+at+"/driver_override", []byte("\n"), 0),
			os.WriteFile(bus+"drivers/vfio-pci/unbind", []byte(at), 0),
			os.WriteFile(bus+"drivers_probe", []byte(at), 0))
	}
	return err
}

// ready waits until the kernel's device has the function's address, and returns the address's index
// in the device's GID table.
func (v *verbsPrograms) ready(ctx context.Context) (index string, err error) {
	ctx, cancel := context.WithTimeout(ctx, programPatience)
	defer cancel()
	for {
		files, _ := filepath.Glob("/sys/class/infiniband/*/ports/1/gids/*")
		for _, f := range files {
			text, _ := os.ReadFile(f)
			if gid, err := guestlib.ParseGID(strings.TrimSpace(string(text))); err == nil && gid.String() == v.Address.String() {
				return filepath.Base(f), nil
			}
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("no RDMA device with address %s after %v; the kernel's log says why", v.Address, programPatience)
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// arguments returns the words of a program's command line.
func (v *verbsPrograms) arguments(words, gid string) []string {
	return strings.Fields(strings.NewReplacer("{gid}", gid, "{peer}", v.Peer).Replace(words))
}

// serve runs the servers. It restarts a server that ends before its client, since the client is
// tried again too.
func (v *verbsPrograms) serve(ctx context.Context, gid string) error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", nextPort))
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for _, p := range VerbsPrograms {
		serving, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for serving.Err() == nil {
				_ = exec.CommandContext(serving, p.Name, v.arguments(p.server, gid)...).Run()
				sleep(serving, 100*time.Millisecond)
			}
		}()
		c, err := l.Accept()
		cancel()
		<-ended
		if err != nil {
			return fmt.Errorf("%s's server: %w before the other guest was done", p.Name, cmp.Or(ctx.Err(), err))
		}
		_ = c.Close() // so that the other knows that it was heard
	}
	return nil
}

// client runs a client again until it succeeds, because the other guest may not be ready yet.
func (v *verbsPrograms) client(ctx context.Context, p verbsProgram, gid string) workload.Program {
	ctx, cancel := context.WithTimeout(ctx, programPatience)
	defer cancel()
	words := v.arguments(p.client, gid)
	r := workload.Program{Command: p.Name + " " + strings.Join(words, " ")}
	for {
		out, err := exec.CommandContext(ctx, p.Name, words...).CombinedOutput()
		if err == nil {
			if r.Did = p.did(string(out)); r.Did != "" {
				return r
			}
			err = errors.New("it printed something else")
		}
		if ctx.Err() == nil || r.Problem == "" { // the output of an earlier try says more than that this one was killed
			r.Problem = fmt.Sprintf("%v: %s", err, lastLine(out))
		}
		if ctx.Err() != nil {
			return r
		}
		sleep(ctx, 200*time.Millisecond)
	}
}

func lastLine(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return string(lines[len(lines)-1])
}

// wroteAt parses perftest's last line of figures: bytes, iterations, peak, average, messages.
func wroteAt(said string) string {
	for line := range strings.Lines(said) {
		var size, count int
		var peak, mean float64
		if n, _ := fmt.Sscan(line, &size, &count, &peak, &mean); n == 4 && mean > 0 {
			return fmt.Sprintf("WRITE %s × %d: %.1f MB/s", cli.Bytes(size), count, mean*(1<<20)/1e6)
		}
	}
	return ""
}

// pinged counts the pings that rping has checked.
func pinged(said string) string {
	if n := strings.Count(said, "ping data: rdma-ping-"); n > 0 {
		return fmt.Sprintf("SEND, READ and WRITE: %d pings, data checked", n)
	}
	return ""
}
