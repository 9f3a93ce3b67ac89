// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The identity of the kubelet's configuration files.
const (
	configAPIVersion = "kubelet.config.k8s.io/v1beta1"
	configKind       = "KubeletConfiguration"
	// dropInExtension is the extension of the files that the kubelet reads in its --config-dir.
	dropInExtension = ".conf"
)

// configuration has the fields of the kubelet's configuration that the node agent reads.
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
	merged := map[string]any{}
	if path != "" {
		main, err := readConfig(path)
		if err != nil {
			return nil, err
		}
		// The kubelet resolves this path relative to the main file, but not in drop-ins.
		if static, ok := main["staticPodPath"].(string); ok {
			main["staticPodPath"] = absolute(static, filepath.Dir(path))
		}
		merge(merged, main)
	}
	if dropIns != "" {
		err := filepath.WalkDir(dropIns, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != dropInExtension {
				return err
			}
			values, err := readConfig(name)
			if err != nil {
				return err
			}
			merge(merged, values)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the drop-ins of the kubelet: %w", err)
		}
	}
	text, err := json.Marshal(merged)
	if err != nil {
		return nil, err
	}
	config := &configuration{}
	if err := json.Unmarshal(text, config); err != nil {
		return nil, fmt.Errorf("kubelet configuration %s: %w", path, err)
	}
	return config, nil
}

// readConfig reads one file.
func readConfig(path string) (map[string]any, error) {
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
	return values, nil
}

// merge applies a JSON merge patch (RFC 7386), as the kubelet does with its drop-ins.
func merge(into, patch map[string]any) {
	for key, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(into, key)
		case map[string]any:
			below, ok := into[key].(map[string]any)
			if !ok {
				below = map[string]any{}
			}
			merge(below, value)
			into[key] = below
		default:
			into[key] = value
		}
	}
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
			continue // the kubelet refuses to start with it
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
