// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelet reads the configuration of this node's kubelet, and checks whether the kubelet is
// healthy and whether it was restarted.
package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// The defaults of the kubelet.
const (
	defaultHealthzPort    = 10248
	defaultHealthzAddress = "127.0.0.1"
)

// ErrNotRunning is returned if no kubelet runs as a separate process.
var ErrNotRunning = errors.New("no process of the kubelet found")

// Facts are the parts of the kubelet's configuration that the node agent needs.
type Facts struct {
	// StaticPodPath is the absolute path of the static pod folder (or of the single manifest);
	// empty if the kubelet runs no static pods from files.
	StaticPodPath string
	// StaticPodURL is set if the kubelet also reads static pods from a URL.
	StaticPodURL bool
	// ShutdownFields are the fields that enable the kubelet's own graceful node shutdown; empty if
	// it is disabled. ShutdownTable has the seconds of each priority.
	ShutdownFields []string
	ShutdownTable  map[int32]int64
	// HealthzAddress is the host and port of the endpoint /healthz; empty if it is disabled.
	HealthzAddress string
	// ContainerRuntimeEndpoint is the endpoint of the CRI.
	ContainerRuntimeEndpoint string
	// Kubeconfig is the absolute path of the kubeconfig file; empty if the kubelet runs without
	// that flag.
	Kubeconfig string
	// NodeName is the node name that the kubelet derives without a cloud provider.
	NodeName string
	// Running is set if the facts come from the command line of a running kubelet.
	Running bool
}

// Discover returns the facts from the command line of the running kubelet and from its files. If no
// kubelet runs, or its command line has no configuration file, it reads the file configPath.
func Discover(ctx context.Context, configPath string) (Facts, error) {
	process, err := Find(ctx)
	if errors.Is(err, ErrNotRunning) {
		klog.FromContext(ctx).Info("The kubelet does not run, reading its configuration file", "path", configPath)
	} else if err != nil {
		return Facts{}, err
	}
	facts, discoverErr := discover(configPath, process.Args, process.Dir)
	facts.Running = err == nil
	return facts, discoverErr
}

// discover reads the files relative to the kubelet's working directory dir.
func discover(configPath string, args []string, dir string) (Facts, error) {
	flags := parseFlags(args)
	if path, ok := flags["config"]; ok && path != "" {
		configPath = path
	} else if _, err := os.Stat(absolute(configPath, dir)); len(args) > 0 && err != nil {
		// This kubelet has only flags.
		configPath = ""
	}
	config, err := loadConfig(absolute(configPath, dir), absolute(flags["config-dir"], dir))
	if err != nil {
		return Facts{}, err
	}
	if err := config.override(flags); err != nil {
		return Facts{}, err
	}
	name, err := nodeutil.GetHostname(flags["hostname-override"])
	if err != nil {
		return Facts{}, err
	}
	fields, table := config.gracefulShutdown()
	return Facts{
		StaticPodPath:            absolute(strings.TrimRight(config.StaticPodPath, string(os.PathSeparator)), dir),
		StaticPodURL:             config.StaticPodURL != "",
		ShutdownFields:           fields,
		ShutdownTable:            table,
		HealthzAddress:           config.healthzAddress(),
		ContainerRuntimeEndpoint: cmp.Or(config.ContainerRuntimeEndpoint, DefaultRuntimeEndpoint),
		Kubeconfig:               absolute(flags["kubeconfig"], dir),
		NodeName:                 name,
	}, nil
}

// healthzAddress returns an address to which the agent can connect.
func (c *configuration) healthzAddress() string {
	port := int32(defaultHealthzPort)
	if c.HealthzPort != nil {
		port = *c.HealthzPort
	}
	if port == 0 {
		return ""
	}
	return Reachable(net.JoinHostPort(cmp.Or(c.HealthzBindAddress, defaultHealthzAddress), strconv.Itoa(int(port))))
}

// Reachable returns an address to which a client on this machine can connect, for the address that
// a server binds.
func Reachable(address string) string {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil || !parsed.Addr().IsUnspecified() {
		return address
	}
	loopback := "127.0.0.1"
	if parsed.Addr().Is6() {
		loopback = "::1"
	}
	return net.JoinHostPort(loopback, fmt.Sprint(parsed.Port()))
}

// absolute returns a path relative to a directory; an empty path stays empty.
func absolute(path, dir string) string {
	if path == "" || dir == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// Process is the running kubelet.
type Process struct {
	PID int
	// ID is unique among all processes of the machine, including those of earlier boots. It does
	// not depend on the clock.
	ID string
	// Started is the time at which the process was started, on the present wall clock.
	Started time.Time
	// Args is the command line with the program's name, and Dir is the working directory. Both are
	// empty if the operating system does not provide them.
	Args []string
	Dir  string
}

func isKubelet(args []string) bool {
	if len(args) == 0 {
		return false
	}
	name := strings.TrimSuffix(strings.ToLower(path.Base(strings.ReplaceAll(args[0], `\`, "/"))), ".exe")
	return name == "kubelet" || name == "hyperkube" && len(args) > 1 && args[1] == "kubelet"
}

// healthTimeout is the maximum time of a health check. The kubelet answers from memory.
const healthTimeout = 5 * time.Second

// Health checks the health of the kubelet.
type Health struct {
	// Address is the host and port of the kubelet's endpoint /healthz, see Facts.HealthzAddress.
	Address string
}

// Check returns an error if the kubelet does not report that it is healthy.
func (h Health) Check(ctx context.Context) error {
	if h.Address == "" {
		return errors.New("the health endpoint of the kubelet is disabled (healthzPort: 0); set the kubelet's healthzPort")
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.Address+"/healthz", nil)
	if err != nil {
		return err
	}
	// Open a new connection each time: a persistent one would outlive a kubelet that is stopping.
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("the kubelet is not healthy: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return fmt.Errorf("the kubelet is not healthy: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the kubelet is not healthy: %s: %q", response.Status, text)
	}
	return nil
}

// Instance identifies the running process of the kubelet: it changes with each restart.
func (Health) Instance(ctx context.Context) (string, error) {
	process, err := Find(ctx)
	return process.ID, err
}

const (
	configAPIVersion, configKind = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	// dropInExtension is the extension of the files that the kubelet reads in its --config-dir.
	dropInExtension = ".conf"
)

// configuration has the fields of the kubelet's configuration that the agent reads, without
// defaults. The kubelet of the node may be of another version: the type of a field that the agent
// does not need may differ there.
type configuration struct {
	StaticPodPath                    string          `json:"staticPodPath"`
	StaticPodURL                     string          `json:"staticPodURL"`
	ShutdownGracePeriod              metav1.Duration `json:"shutdownGracePeriod"`
	ShutdownGracePeriodCriticalPods  metav1.Duration `json:"shutdownGracePeriodCriticalPods"`
	ShutdownGracePeriodByPodPriority []struct {
		Priority                   int32 `json:"priority"`
		ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
	} `json:"shutdownGracePeriodByPodPriority"`
	HealthzPort              *int32          `json:"healthzPort"`
	HealthzBindAddress       string          `json:"healthzBindAddress"`
	ContainerRuntimeEndpoint string          `json:"containerRuntimeEndpoint"`
	FeatureGates             map[string]bool `json:"featureGates"`
}

// loadConfig reads the configuration file and the drop-ins in the directory, in the kubelet's
// order. It skips empty paths.
func loadConfig(path, dropIns string) (*configuration, error) {
	merged := []byte("{}")
	if path != "" {
		var err error
		// The kubelet resolves paths relative to the main file, but not in drop-ins.
		if merged, err = apply(merged, path, filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	if dropIns != "" {
		err := filepath.WalkDir(dropIns, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != dropInExtension {
				return err
			}
			merged, err = apply(merged, name, "")
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the drop-ins of the kubelet: %w", err)
		}
	}
	config := &configuration{}
	if err := json.Unmarshal(merged, config); err != nil {
		return nil, fmt.Errorf("kubelet configuration %s: %w", path, err)
	}
	return config, nil
}

// apply reads one file and applies it to the configuration as a JSON merge patch (RFC 7386), as the
// kubelet does. A relative path of static pods is relative to dir.
func apply(config []byte, path, dir string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration of the kubelet: %w", err)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("kubelet configuration %s: %w", path, err)
	}
	if values["apiVersion"] != configAPIVersion || values["kind"] != configKind {
		return nil, fmt.Errorf("kubelet configuration %s: must be of apiVersion %s and kind %s, is %v, %v",
			path, configAPIVersion, configKind, values["apiVersion"], values["kind"])
	}
	if static, ok := values["staticPodPath"].(string); ok {
		values["staticPodPath"] = absolute(static, dir)
	}
	patch, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	return jsonpatch.MergePatch(config, patch)
}

// override applies the flags, which take precedence over the files.
func (c *configuration) override(flags map[string]string) error {
	for flag, field := range map[string]*string{
		"pod-manifest-path":          &c.StaticPodPath,
		"manifest-url":               &c.StaticPodURL,
		"healthz-bind-address":       &c.HealthzBindAddress,
		"container-runtime-endpoint": &c.ContainerRuntimeEndpoint,
	} {
		if value, ok := flags[flag]; ok {
			*field = value
		}
	}
	if value, ok := flags["healthz-port"]; ok {
		port, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return fmt.Errorf("flag --healthz-port of the kubelet: %w", err)
		}
		number := int32(port)
		c.HealthzPort = &number
	}
	for _, gate := range strings.Split(flags["feature-gates"], ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(gate), "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			continue // the kubelet does not start with such a line
		}
		if c.FeatureGates == nil {
			c.FeatureGates = map[string]bool{}
		}
		c.FeatureGates[name] = on
	}
	return nil
}

// criticalPriority is the lowest priority to which shutdownGracePeriodCriticalPods applies.
const criticalPriority = 2000000000

// gracefulShutdown returns the fields that configure the kubelet's own shutdown delay, and the
// seconds of each priority.
func (c *configuration) gracefulShutdown() (fields []string, table map[int32]int64) {
	if on, ok := c.FeatureGates[shutdownFeature]; ok && !on {
		return nil, nil
	}
	table = map[int32]int64{}
	total := int64(0)
	for _, entry := range c.ShutdownGracePeriodByPodPriority {
		table[entry.Priority] = entry.ShutdownGracePeriodSeconds
		total += entry.ShutdownGracePeriodSeconds
	}
	if total > 0 {
		return []string{"shutdownGracePeriodByPodPriority"}, table
	}
	if c.ShutdownGracePeriod.Duration <= 0 {
		return nil, nil
	}
	fields = []string{"shutdownGracePeriod"}
	if c.ShutdownGracePeriodCriticalPods.Duration > 0 {
		fields = append(fields, "shutdownGracePeriodCriticalPods")
	}
	return fields, map[int32]int64{
		0:                int64((c.ShutdownGracePeriod.Duration - c.ShutdownGracePeriodCriticalPods.Duration) / time.Second),
		criticalPriority: int64(c.ShutdownGracePeriodCriticalPods.Duration / time.Second),
	}
}

// parseFlags returns the values of the flags in a command line without the program's name. If a
// flag is repeated, the last value wins, as in the kubelet.
func parseFlags(args []string) map[string]string {
	flags := map[string]string{}
	for i := 1; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], "--")
		if !ok {
			continue
		}
		if name == "" {
			break
		}
		name, value, hasValue := strings.Cut(name, "=")
		if !hasValue && i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
			i++
			value = args[i]
		}
		flags[strings.ReplaceAll(name, "_", "-")] = value
	}
	return flags
}
