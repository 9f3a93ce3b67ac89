// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package install installs, updates and removes the service of the node agent on a host with
// systemd. The host is this system, or the system whose root is mounted into this container.
package install

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/files"
)

const (
	// Unit is the name of the agent's service.
	Unit = "haulout-node-agent.service"
	// DefaultBinary is the default path of the installed program.
	DefaultBinary = "/usr/local/bin/haulout-node-agent"
	// UnitPath is the path of the unit file.
	UnitPath = "/etc/systemd/system/" + Unit

	// restartMarker is a file that exists while a change on the disk has no effect on the running
	// agent yet. A reboot removes the file, and also restarts the agent.
	restartMarker = "/run/haulout-node-agent.restart"
)

// ErrShutdownPending is returned by Uninstall: without the agent, the machine would go down
// immediately, with all pods running.
var ErrShutdownPending = errors.New("the agent delays a pending shutdown")

// Options describe the service.
type Options struct {
	// Root is the directory where the root of the host is mounted, or "".
	Root string
	// Source is the path of the program to install, as this process sees it; empty means the
	// running program.
	Source string
	// Binary is the path of the program on the host; empty means DefaultBinary.
	Binary string
	// Args are the arguments of the program.
	Args []string
	// Files are additional files for the host, such as the configuration.
	Files []File
	// KubeletUnit is the kubelet's unit, kubelet.service if empty.
	KubeletUnit string
	// MaxDelay is the time that systemd waits for the agent when the system goes down.
	MaxDelay time.Duration
}

// File is a file on the host.
type File struct {
	// Path is its path on the host.
	Path string
	// Content is the whole content.
	Content []byte
	// Mode are its permissions.
	Mode fs.FileMode
}

// Install installs or updates the service, and starts or restarts it if necessary. It reports
// whether it changed anything. If it fails, the next call completes the installation.
func Install(ctx context.Context, o Options) (changed bool, err error) {
	if err := o.complete(); err != nil {
		return false, err
	}
	unit, err := unitFile(&o)
	if err != nil {
		return false, err
	}
	client, err := systemd.Dial(ctx, o.Root)
	if err != nil {
		return false, err
	}
	defer client.Close()
	previous := o.installedProgram()
	all := append(slices.Clone(o.Files), File{Path: UnitPath, Content: []byte(unit), Mode: 0o644})
	for _, path := range scopeDropIns {
		all = append(all, File{Path: path, Content: []byte(scopeDropIn), Mode: 0o644})
	}
	for _, file := range all {
		written, err := o.write(ctx, file.Path, file.Mode, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file.Content)), nil })
		if err != nil {
			return changed, err
		}
		changed = changed || written
	}
	written, err := o.write(ctx, o.Binary, 0o755, o.openSource)
	if err != nil {
		return changed, err
	}
	changed = changed || written
	removed, err := o.removeOlder(ctx, client)
	changed = changed || removed
	if err != nil {
		return changed, err
	}
	started, err := o.start(ctx, client)
	if err == nil && previous != o.Binary {
		err = files.Remove(o.path(previous))
	}
	return changed || started, err
}

// start enables the unit. It starts or restarts the agent unless it already runs the installed
// version.
func (o *Options) start(ctx context.Context, client *systemd.Client) (bool, error) {
	_, err := os.Stat(o.path(restartMarker))
	restart := err == nil
	if restart {
		if err := client.Reload(ctx); err != nil {
			return false, err
		}
	}
	state, err := client.Unit(ctx, Unit)
	if err != nil {
		return false, err
	}
	changed := false
	if state.File != "enabled" {
		if err := client.EnableUnit(ctx, Unit); err != nil {
			return false, err
		}
		if err := client.Reload(ctx); err != nil {
			return false, err
		}
		changed = true
	}
	if !restart && state.Active == "active" {
		return changed, nil
	}
	klog.FromContext(ctx).Info("Starting the node agent", "unit", Unit, "wasActive", state.Active)
	// A pending shutdown is still delayed: systemd holds the lock during the restart.
	if err := client.RestartUnit(ctx, Unit); err != nil {
		return changed, err
	}
	return true, files.Remove(o.path(restartMarker))
}

// Pending reports whether a shutdown is pending or in progress, through logind or directly through
// systemd.
func Pending(ctx context.Context, root string) (bool, error) {
	client, err := systemd.Dial(ctx, root)
	if err != nil {
		return false, err
	}
	defer client.Close()
	if state, err := client.SystemState(ctx); err != nil || state == systemd.StateStopping {
		return err == nil, err
	}
	return logind.Pending(ctx, root)
}

// Uninstall stops and removes the service: its unit, its program and its configuration files for
// systemd and logind. It keeps the agent's own configuration and state.
func Uninstall(ctx context.Context, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	pending, err := Pending(ctx, o.Root)
	if err != nil {
		// Continue: without logind, the agent cannot delay a shutdown.
		klog.FromContext(ctx).Error(err, "Cannot check whether a shutdown is pending")
	}
	if pending {
		return ErrShutdownPending
	}
	client, err := systemd.Dial(ctx, o.Root)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.StopUnit(ctx, Unit); err != nil {
		return err
	}
	if err := client.DisableUnit(ctx, Unit); err != nil {
		return err
	}
	// Remove the unit after the program, since the unit has the path of the program.
	if err := files.Remove(o.path(o.installedProgram()), o.path(UnitPath), o.path(restartMarker)); err != nil {
		return err
	}
	for _, path := range scopeDropIns {
		if err := removeDropIn(o.path(path)); err != nil {
			return err
		}
	}
	if _, err := o.removeOlder(ctx, client); err != nil {
		return err
	}
	if err := client.Reload(ctx); err != nil {
		return err
	}
	if err := client.ResetFailed(ctx, Unit); err != nil {
		return err
	}
	return logind.RemoveDropIn(ctx, client, o.Root)
}

func (o *Options) path(path string) string {
	return filepath.Join(string(filepath.Separator), o.Root, path)
}

func (o *Options) openSource() (io.ReadCloser, error) {
	// Do not use os.Executable: its path is wrong once the file has been replaced.
	return os.Open(cmp.Or(o.Source, "/proc/self/exe"))
}

// write replaces a file of the host if it differs, and reports whether it replaced it.
func (o *Options) write(ctx context.Context, path string, mode fs.FileMode, open func() (io.ReadCloser, error)) (bool, error) {
	same, err := o.same(path, mode, open)
	if err != nil {
		return false, fmt.Errorf("compare %s: %w", path, err)
	}
	if same {
		return false, nil
	}
	// Create the marker before the change: if this process ends after the change, its next run must
	// still restart the agent.
	if err := os.WriteFile(o.path(restartMarker), nil, 0o644); err != nil {
		return false, fmt.Errorf("create the marker for a restart: %w", err)
	}
	source, err := open()
	if err != nil {
		return false, err
	}
	defer source.Close()
	if err := files.ReplaceShared(o.path(path), source, mode); err != nil {
		return false, fmt.Errorf("install %s: %w", path, err)
	}
	klog.FromContext(ctx).Info("Installed a file", "path", path)
	return true, nil
}

func (o *Options) same(path string, mode fs.FileMode, open func() (io.ReadCloser, error)) (bool, error) {
	info, err := os.Stat(o.path(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || info.Mode() != mode {
		return false, err
	}
	installed, err := sumOf(func() (io.ReadCloser, error) { return os.Open(o.path(path)) })
	if err != nil {
		return false, err
	}
	source, err := sumOf(open)
	return installed == source, err
}

// sumOf returns the checksum of a file without reading the whole file into memory.
func sumOf(open func() (io.ReadCloser, error)) (sum [sha256.Size]byte, err error) {
	file, err := open()
	if err != nil {
		return sum, err
	}
	defer file.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return [sha256.Size]byte(hash.Sum(nil)), err
}

// removeDropIn removes a drop-in, and its folder if the folder is empty then.
func removeDropIn(path string) error {
	if err := files.Remove(path); err != nil {
		return err
	}
	err := unix.Rmdir(filepath.Dir(path))
	// The error ENOTDIR means that the folder is a link, which the agent did not create.
	for _, left := range []error{unix.ENOENT, unix.ENOTEMPTY, unix.ENOTDIR, unix.EBUSY} {
		if errors.Is(err, left) {
			return nil
		}
	}
	return err
}

// unitTemplate is the unit file. Comments explain lines to administrators where necessary.
var unitTemplate = template.Must(template.New("unit").Funcs(template.FuncMap{"quote": quote}).Parse(
	`# Written by haulout-node-agent install, which overwrites all changes. Use a drop-in:
# systemctl edit {{.Unit}}
[Unit]
Description=Haulout node agent
# systemd stops units in the opposite order: the agent must end before the pods and the network do.
After={{.KubeletUnit}} containerd.service crio.service cri-docker.service docker.service dbus.service systemd-logind.service network-online.target
Wants=network-online.target
# Without an agent, a shutdown does not wait, so systemd restarts it without a limit.
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={{range $i, $word := .Command}}{{if $i}} {{end}}{{quote $word}}{{end}}
Restart=always
RestartSec=200ms
# systemd keeps the shutdown lock while the agent is restarted.
FileDescriptorStoreMax=8
# A shutdown that bypasses logind waits this long for the agent.
TimeoutStopSec={{.StopSeconds}}
KillMode=mixed
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target

[X-Haulout]
# The command uninstall removes this program.
` + programKey + `{{.Program}}
`))

// scopeDropIns are the paths of the drop-ins for the units of containers, by the names that
// containerd and CRI-O use.
var scopeDropIns = []string{
	"/etc/systemd/system/cri-containerd-.scope.d/50-haulout-node-agent.conf",
	"/etc/systemd/system/crio-.scope.d/50-haulout-node-agent.conf",
}

// scopeDropIn makes systemd end containers after the agent. Otherwise a shutdown that bypasses
// logind ends all containers first, regardless of their priority, since systemd stops the slices of
// pods at the start of a shutdown.
const scopeDropIn = `# Written by haulout-node-agent install, which overwrites all changes.
# When the system goes down, the node agent ends the containers in the order of their priorities.
[Unit]
Before=` + Unit + "\n"

// programKey begins the line of the unit file with the path of the program. systemd ignores
// sections that begin with X-.
const programKey = "Program="

// installedProgram returns the path of the installed program; the path in the options if the unit
// file does not have the path.
func (o *Options) installedProgram() string {
	content, err := os.ReadFile(o.path(UnitPath))
	if err != nil {
		return o.Binary
	}
	for line := range strings.Lines(string(content)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), programKey); ok && filepath.IsAbs(path) {
			return path
		}
	}
	return o.Binary
}

func unitFile(o *Options) (string, error) {
	var text strings.Builder
	err := unitTemplate.Execute(&text, struct {
		Unit, KubeletUnit, Program string
		Command                    []string
		StopSeconds                int64
	}{
		Unit: Unit, KubeletUnit: o.KubeletUnit, Program: o.Binary,
		Command:     append([]string{o.Binary}, o.Args...),
		StopSeconds: int64((o.MaxDelay + time.Second - 1) / time.Second),
	})
	if err != nil {
		return "", fmt.Errorf("write the unit file: %w", err)
	}
	return text.String(), nil
}

// quote quotes a word of a command for systemd.
func quote(word string) string {
	word = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "%", "%%", "$", "$$").Replace(word)
	if word == "" || strings.ContainsAny(word, " \t'\\\";") {
		return `"` + word + `"`
	}
	return word
}

func (o *Options) complete() error {
	if o.Root == "/" {
		o.Root = ""
	}
	o.Binary, o.KubeletUnit = cmp.Or(o.Binary, DefaultBinary), cmp.Or(o.KubeletUnit, "kubelet.service")
	if !filepath.IsAbs(o.Binary) || filepath.Clean(o.Binary) != o.Binary || strings.Contains(o.Binary, "\n") {
		return fmt.Errorf("path of the program %q: must be absolute, on one line, and have no . or .. element", o.Binary)
	}
	if strings.ContainsAny(o.KubeletUnit, " \t\n%") || filepath.Ext(o.KubeletUnit) == "" {
		return fmt.Errorf("unit of the kubelet %q: must be the name of one unit with its suffix, like kubelet.service", o.KubeletUnit)
	}
	for i := range o.Files {
		if path := o.Files[i].Path; !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return fmt.Errorf("path of the file %q: must be absolute and have no . or .. element", path)
		}
	}
	return nil
}
