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

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

const (
	configKind = "KubeletConfiguration"
	// dropInExtension is the extension of the files that the kubelet reads in its --config-dir.
	dropInExtension = ".conf"
)

// configuration is the kubelet's configuration from its files and flags, without defaults.
type configuration kubeletv1beta1.KubeletConfiguration

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
	if version := kubeletv1beta1.SchemeGroupVersion.String(); values["apiVersion"] != version || values["kind"] != configKind {
		return nil, fmt.Errorf("kubelet configuration %s: must be of apiVersion %s and kind %s, is %v, %v",
			path, version, configKind, values["apiVersion"], values["kind"])
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
