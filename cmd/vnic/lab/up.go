package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/files"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// readyTime is how long the NICs have to start and to reach each other.
const readyTime = time.Minute

// up makes the lab that a file describes, with changes to the file: it removes what the file does not
// have, leaves what is as the file says, and makes the rest. The guest named paused, if any,
// is started and does not run. With an error it returns the plan that it made a part of, if it made any.
func up(ctx context.Context, arg string, changes []string, paused string, out *progress) (*plan, error) {
	l, text, err := labfile.Load(arg, changes...)
	if err != nil {
		return nil, err
	}
	if err := checkMachine(); err != nil {
		return nil, err
	}
	if len(spaces(l.Name)) > 0 && !slices.Contains(labs(), l.Name) {
		return nil, fmt.Errorf("network namespaces named %s or %[1]s.… exist already and belong to no lab: remove them with ip netns del, or give the lab another name", l.Name)
	}
	source, baseFolder := arg, "." // of a lab that comes with the program: the current folder
	if strings.ContainsAny(arg, "./") {
		if source, err = filepath.Abs(arg); err != nil {
			return nil, err
		}
		baseFolder = filepath.Dir(source)
	}
	if baseFolder, err = filepath.Abs(baseFolder); err != nil {
		return nil, err
	}
	// Everything that can be wrong with the file is said before anything is made.
	p, err := newPlan(l, &state{Source: source, Folder: baseFolder})
	if err == nil {
		err = errors.Join(p.checkEtcd(), p.checkGuests())
	}
	if err != nil {
		return nil, fmt.Errorf("lab %s:\n%w", arg, err)
	}
	unlock, err := lock(l.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	had, err := loadState(folder(l.Name))
	if err != nil {
		return nil, err
	}
	had.Source, had.Folder, had.Links = source, baseFolder, nil // as the file says
	if p, err = newPlan(l, had); err != nil {
		return nil, fmt.Errorf("lab %s:\n%w", arg, err)
	}
	b := &builder{plan: p, text: text, out: out, running: map[string]*daemon{}, paused: paused}
	return p, b.build(ctx)
}

// checkMachine returns an error if this machine or user cannot have labs.
func checkMachine() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root: run it with sudo")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return errors.New("the program ip is missing: install iproute2")
	}
	return nil
}

// builder makes what a plan describes.
type builder struct {
	*plan
	text    []byte
	out     *progress
	changed []*host // whose NICs go on with other peers, or another impairment of their uplinks
	running map[string]*daemon
	debian  image.Kernel // Debian's, when a guest has needed it
	paused  string       // the guest that is started and does not run; "": none
}

func (b *builder) build(ctx context.Context) error {
	b.forgetSpaces()
	restart, err := b.endNICs()
	if err == nil {
		err = b.removeRest()
	}
	if err == nil {
		err = b.network()
	}
	if err == nil && b.etcd != nil {
		err = b.startFleet(ctx)
	} else if err == nil {
		err = b.identities()
	}
	if err != nil {
		return err
	}
	if err := files.Replace(filepath.Join(folder(b.Name), labFile), b.text, 0o644); err != nil {
		return err
	}
	if err := b.startNICs(ctx, restart); err != nil {
		return err
	}
	for _, h := range b.hosts { // all, as a command that was killed may have started the NIC
		if err := h.setAddresses(); err != nil {
			return err
		}
	}
	if err := b.guests(ctx); err != nil {
		return err
	}
	return b.runExec(ctx)
}

// runExec runs the commands of machines that were made, by this command or one that was killed.
func (b *builder) runExec(ctx context.Context) error {
	for _, h := range b.hosts {
		for _, m := range h.Machines {
			if !m.InNamespace() || b.state.Begun[m.Space()] {
				continue
			}
			if err := m.runExec(ctx); err != nil {
				return err
			}
			b.state.Begun[m.Space()] = true
		}
	}
	return b.state.save(folder(b.Name))
}

// shapes returns what the plan's namespaces are to be like.
func (b *builder) shapes() map[string]string {
	shapes := map[string]string{b.Name: b.fabricShape()}
	if b.etcd != nil {
		shapes[b.etcd.Space()] = b.etcd.shape()
	}
	for _, h := range b.hosts {
		shapes[h.Space()] = h.shape()
		for _, m := range h.Machines {
			if m.InNamespace() {
				shapes[m.Space()] = m.shape()
			}
		}
	}
	return shapes
}

// forgetSpaces has the state forget the namespaces that are not there as the plan has them. What is there of them is
// removed, and they are made again.
func (b *builder) forgetSpaces() {
	there, shapes := spaces(b.Name), b.shapes()
	maps.DeleteFunc(b.state.Made, func(name, shape string) bool {
		return !slices.Contains(there, name) || shape != shapes[name]
	})
	if b.state.Made[b.Name] == "" { // the cables of hosts are gone, too, and that of etcd
		for _, h := range b.hosts {
			delete(b.state.Made, h.Space())
		}
		delete(b.state.Made, space(b.Name, labfile.DirectoryEtcd))
	}
}

// endNICs ends the NICs that are not to go on as they are, with their guests, and returns their hosts. It notes
// those that go on and change.
func (b *builder) endNICs() (restart []*host, err error) {
	for _, h := range b.hosts {
		text, err := os.ReadFile(h.Config())
		same := err == nil && sameNIC(text, []byte(h.text)) && b.state.Made[h.Space()] != ""
		for _, m := range h.Machines {
			same = same && (!m.InNamespace() || b.state.Made[m.Space()] != "")
		}
		if n, ok := answers(h); same && ok {
			if h.differs(string(text), n.Peers) {
				b.changed = append(b.changed, h)
			}
			continue
		}
		restart = append(restart, h)
		if err := end(func() []process { return append(nic(h), qemus(h, "")...) }); err != nil {
			return nil, err
		}
	}
	return restart, nil
}

// removeRest removes the namespaces that the state does not know, and the files that the plan has not.
func (b *builder) removeRest() error {
	shapes := b.shapes()
	for _, name := range spaces(b.Name) {
		if b.state.Made[name] != "" {
			continue
		}
		if shapes[name] == "" {
			b.out.step("%s: removed", strings.TrimPrefix(name, b.Name+"."))
		}
		if err := removeSpace(name); err != nil {
			return err
		}
	}
	return errors.Join(b.sweep(), b.state.save(folder(b.Name)))
}

// sweep removes the files of hosts and machines that the plan has not.
func (b *builder) sweep() error {
	files, err := filepath.Glob(filepath.Join(folder(b.Name), "[a-z]*.*"))
	for _, f := range files {
		base := filepath.Base(f)
		if name, _, _ := strings.Cut(base, "."); base != labFile && base != stateFile && !slices.Contains(b.places(), name) {
			err = errors.Join(err, os.RemoveAll(f))
		}
	}
	if b.etcd == nil {
		err = errors.Join(err, os.RemoveAll((&etcd{b.Lab}).Folder()))
	}
	return err
}

// answers returns the state of a host's NIC, if it runs.
func answers(h *host) (n control.NIC, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	n, err := control.NewClient(h.Control()).NIC(ctx)
	return n, err == nil
}

// network makes the namespaces that are missing. What is complete is noted, so that what a killed
// command left half made is made again.
func (b *builder) network() error {
	ensure := func(name, shape string, f func() error) (made bool, err error) {
		if b.state.Made[name] == shape {
			return false, nil
		}
		if err := f(); err != nil {
			return false, err
		}
		b.state.Made[name] = shape
		delete(b.state.Begun, name)
		return true, b.state.save(folder(b.Name))
	}
	if _, err := ensure(b.Name, b.fabricShape(), b.fabric); err != nil {
		return err
	}
	if b.etcd != nil {
		if _, err := ensure(b.etcd.Space(), b.etcd.shape(), b.etcd.makeNetwork); err != nil {
			return err
		}
	}
	hosts, machines := 0, 0
	for _, h := range b.hosts {
		made, err := ensure(h.Space(), h.shape(), h.makeNetwork)
		if err != nil {
			return err
		}
		if made {
			hosts++
		}
		for _, m := range h.Machines {
			if !m.InNamespace() {
				continue
			}
			if made, err = ensure(m.Space(), m.shape(), m.makeNetwork); err != nil {
				return err
			}
			if made {
				machines++
			}
			if err := b.writeHostsFile(m); err != nil {
				return err
			}
		}
	}
	if hosts+machines > 0 {
		b.out.step("network: %d hosts, %d machines", hosts, machines)
	}
	return nil
}

// identities makes the certificates of hosts that have none. What a killed command left half made is
// made again.
func (b *builder) identities() error {
	dir := b.hosts[0].Keys()
	var missing []string
	for _, h := range b.hosts {
		if _, err := cmlink.Load(dir, h.Name); err == nil {
			continue
		}
		for _, suffix := range []string{"pem", "key"} {
			if err := os.Remove(filepath.Join(dir, fmt.Sprintf("host-%s.%s", h.Name, suffix))); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		missing = append(missing, h.Name)
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := os.Stat(dir); err == nil {
		return cmlink.Add(dir, b.Name, missing)
	}
	part := dir + ".part"
	if err := errors.Join(os.RemoveAll(part), cmlink.Init(part, b.Name, missing)); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// startNICs writes the configurations of hosts, starts their NICs, and waits until every NIC of the
// lab has reached its peers.
func (b *builder) startNICs(ctx context.Context, hosts []*host) error {
	for _, h := range hosts {
		if err := files.Replace(h.Config(), []byte(h.text), 0o644); err != nil {
			return err
		}
		out, log, err := logTo(h.Space(), "watch", h.Log())
		if err != nil {
			return err
		}
		d, err := start(h.Space(), nil, out, nil, program, "run", "-c", h.Config())
		out.Close()
		if err != nil {
			return err
		}
		d.log = log
		b.running[h.Name] = d
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for _, h := range b.changed {
		if err := h.adapt(ctx); err != nil {
			return err
		}
	}
	for i, h := range b.hosts {
		b.out.now("NICs: %d of %d are up", i, len(b.hosts))
		if err := b.ready(ctx, h); err != nil {
			return err
		}
	}
	if len(hosts)+len(b.changed) > 0 {
		b.out.step("NICs: %d started, %d changed, all have reached their peers", len(hosts), len(b.changed))
	}
	return nil
}

// ready waits until a NIC has reached its peers and knows their functions, and its services take
// connections.
func (b *builder) ready(ctx context.Context, h *host) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if d := b.running[h.Name]; d != nil {
		go func() {
			select {
			case <-d.ended:
				<-d.log.ended
				cancel(fmt.Errorf("it ended: %w", d.err))
			case <-ctx.Done():
			}
		}()
	}
	client := control.NewClient(h.Control())
	_, err := client.Wait(ctx, func(n control.NIC) error {
		for _, want := range h.Peers {
			at := slices.IndexFunc(n.Peers, func(p control.Peer) bool { return p.Name == want.Name })
			if at < 0 {
				return fmt.Errorf("peer %s is not known yet", want.Name)
			}
			if p := &n.Peers[at]; !p.Up || p.Functions == 0 {
				return fmt.Errorf("peer %s is down: %s", p.Name, p.Note)
			}
		}
		return h.serves(ctx, client)
	}, nil)
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
		err = cause
	}
	return fmt.Errorf("the NIC of host %s: %w\n%s", h.Name, err, lastLines(h.Log()))
}

// serves returns nil if the services of a host's NIC take connections, which they do before they have a
// queue pair.
func (h *host) serves(ctx context.Context, client *control.Client) error {
	if !slices.ContainsFunc(h.Machines, func(m *machine) bool { return m.Service != "" }) {
		return nil
	}
	functions, err := client.Functions(ctx)
	if err != nil {
		return err
	}
	for _, m := range h.Machines {
		if f := m.functionAmong(functions); m.Service != "" && (f == nil || f.QPs == 0) {
			return fmt.Errorf("the service of %s has not begun", m.Name)
		}
	}
	return nil
}

// setAddresses gives the ports of a host's machines their addresses; guests ask by DHCP.
func (h *host) setAddresses() error {
	for _, m := range h.Machines {
		if m.InNamespace() {
			if err := m.setAddress(); err != nil {
				return err
			}
		}
	}
	return nil
}

// restart starts a host's NIC and its guests again.
func (b *builder) restart(ctx context.Context, h *host) error {
	if err := end(func() []process { return append(nic(h), qemus(h, "")...) }); err != nil {
		return err
	}
	if err := b.startNICs(ctx, []*host{h}); err != nil {
		return err
	}
	return errors.Join(h.setAddresses(), b.guests(ctx))
}

// runExec runs a machine's commands.
func (m *machine) runExec(ctx context.Context) error {
	if len(m.Exec) == 0 {
		return nil
	}
	out, log, err := logTo(m.host.Space(), "watch", m.File(".exec.log"))
	if err != nil {
		return err
	}
	defer out.Close()
	for _, line := range m.Exec {
		ctx, cancel := context.WithTimeout(ctx, labfile.DefaultTimeout)
		cmd := m.command(ctx, "sh", "-c", line)
		cmd.Stdout, cmd.Stderr = out, out
		err := cmd.Run()
		cancel()
		if err != nil {
			out.Close()
			select { // what it started in the background may have the log, too
			case <-log.ended:
			case <-time.After(time.Second):
			}
			return fmt.Errorf("machines.%s.exec: %s: %w\n%s", m.Name, line, err, lastLines(m.File(".exec.log")))
		}
	}
	return nil
}

// progress writes what a command does: a line for each step, and on a terminal also what it waits for.
type progress struct {
	w        io.Writer
	terminal bool
	begun    time.Time
}

func (p *progress) step(format string, a ...any) {
	p.erase()
	fmt.Fprintf(p.w, "%5.1fs  %s\n", time.Since(p.begun).Seconds(), fmt.Sprintf(format, a...))
}

// now shows what the command waits for, until the next step.
func (p *progress) now(format string, a ...any) {
	if p.terminal {
		p.erase()
		fmt.Fprintf(p.w, "%5.1fs  %s …", time.Since(p.begun).Seconds(), fmt.Sprintf(format, a...))
	}
}

func (p *progress) erase() {
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
