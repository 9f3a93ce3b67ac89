// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

// unitTemplate is the unit file. The lines that need a reason have it, as administrators read it.
var unitTemplate = template.Must(template.New("unit").Funcs(template.FuncMap{"quote": quote}).Parse(
	`# Written by haulout-node-agent install, which overwrites all changes. Use a drop-in:
# systemctl edit {{.Unit}}
[Unit]
Description=Haulout node agent
# systemd stops units in the opposite order: the agent must end before the pods and the network do.
After={{.KubeletUnit}} containerd.service crio.service dbus.service systemd-logind.service network-online.target
Wants=network-online.target
# Without an agent, a shutdown does not wait: it is started again however often it ends.
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={{range $i, $word := .Command}}{{if $i}} {{end}}{{quote $word}}{{end}}
Restart=always
RestartSec=200ms
# systemd keeps the shutdown lock while the agent is restarted.
FileDescriptorStoreMax=8
# A shutdown that goes around logind waits this long for the agent.
TimeoutStopSec={{.StopSeconds}}
KillMode=mixed
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target

[X-Haulout]
# What uninstall removes.
` + programKey + `{{.Program}}
`))

// scopeDropIns are for the units of containers: containerd and CRI-O name them so.
var scopeDropIns = []string{
	"/etc/systemd/system/cri-containerd-.scope.d/50-haulout-node-agent.conf",
	"/etc/systemd/system/crio-.scope.d/50-haulout-node-agent.conf",
}

// scopeDropIn lets systemd end containers after the agent. Otherwise a shutdown that goes around
// logind ends all of them first, whatever their priority, since the slices of pods may not run
// during a shutdown.
const scopeDropIn = `# Written by haulout-node-agent install, which overwrites all changes.
# When the system goes down, the node agent ends the containers in the order of their priorities.
[Unit]
Before=` + Unit + "\n"

// programKey begins the line of the unit file with the path of the program. systemd ignores
// sections that begin with X-.
const programKey = "Program="

// installedProgram returns the path of the program that is installed, or the one of the options if
// the unit does not tell it.
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

// unitFile returns the content of the unit file.
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

// quote writes a word of a command so that systemd reads it unchanged.
func quote(word string) string {
	word = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "%", "%%", "$", "$$").Replace(word)
	if word == "" || strings.ContainsAny(word, " \t'\\\";") {
		return `"` + word + `"`
	}
	return word
}

// complete fills in the defaults, and returns what is wrong with the options.
func (o *Options) complete() error {
	if o.Root == "/" {
		o.Root = ""
	}
	for field, value := range map[*string]string{&o.Binary: DefaultBinary, &o.KubeletUnit: "kubelet.service"} {
		if *field == "" {
			*field = value
		}
	}
	if !filepath.IsAbs(o.Binary) || filepath.Clean(o.Binary) != o.Binary || strings.Contains(o.Binary, "\n") {
		return fmt.Errorf("path of the program %q: must be absolute, on one line, and have no . or .. in it", o.Binary)
	}
	if strings.ContainsAny(o.KubeletUnit, " \t\n%") || filepath.Ext(o.KubeletUnit) == "" {
		return fmt.Errorf("unit of the kubelet %q: must be the name of one unit with its suffix, like kubelet.service", o.KubeletUnit)
	}
	for i := range o.Files {
		if path := o.Files[i].Path; !filepath.IsAbs(path) || filepath.Clean(path) != path {
			return fmt.Errorf("path of the file %q: must be absolute and have no . or .. in it", path)
		}
	}
	return nil
}
