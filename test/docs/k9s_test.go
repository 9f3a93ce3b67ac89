// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// resources are the resources of the API by the folder of the registry that has their table.
var resources = map[string]string{"nodemaintenance": "nodemaintenances", "evacuation": "evacuations"}

// TestK9sShowsColumnsOfTheServer checks that artifacts/k9s/views.yaml names columns of the tables
// of both kinds.
func TestK9sShowsColumnsOfTheServer(t *testing.T) {
	var file struct {
		Views map[string]struct {
			SortColumn string
			Columns    []string
		}
	}
	must.Do(t, yaml.UnmarshalStrict([]byte(read(t, "artifacts/k9s/views.yaml")), &file))
	is.Equal(t, len(file.Views), len(resources))
	column := regexp.MustCompile(`\{Name: "([^"]+)", Type: `)
	for folder, resource := range resources {
		var known []string
		for _, match := range column.FindAllStringSubmatch(read(t, path.Join("pkg/registry/maintenance", folder, "table.go")), -1) {
			known = append(known, strings.ToUpper(match[1]))
		}
		must.True(t, len(known) >= 8, "found only %d columns of %s", len(known), resource)
		if resource == "evacuations" {
			known = append(known, "NAMESPACE") // the client adds it
		}
		view := file.Views[v1alpha1.SchemeGroupVersion.String()+"/"+resource]
		is.True(t, len(view.Columns) >= 8, "artifacts/k9s/views.yaml has only %d columns of %s", len(view.Columns), resource)
		var names []string
		for _, text := range view.Columns {
			name, _, _ := strings.Cut(text, "|")
			names = append(names, name)
			is.True(t, slices.Contains(known, name), "%s: the server has no column %s, only %q", resource, name, known)
		}
		sorted, direction, _ := strings.Cut(view.SortColumn, ":")
		is.True(t, slices.Contains(names, sorted), "%s: the view is sorted by %s, which is not in it", resource, sorted)
		is.True(t, direction == "asc" || direction == "desc", "%s: %q is no direction", resource, direction)
	}
}

// TestK9sRunsCommandsOfThePlugin checks the keys of artifacts/k9s/plugins.yaml: their scopes, that
// no key has two meanings in a view, and that the plugin has the commands and k9s the variables.
func TestK9sRunsCommandsOfThePlugin(t *testing.T) {
	var file struct {
		Plugins map[string]struct {
			ShortCut, Description, Command string
			Confirm, Dangerous             bool
			Scopes, Args                   []string
		}
	}
	must.Do(t, yaml.UnmarshalStrict([]byte(read(t, "artifacts/k9s/plugins.yaml")), &file))
	commands := pluginCommands(t)
	used := regexp.MustCompile(`^(?:kubectl )?maintenance ([a-z]+) `)
	variable := regexp.MustCompile(`\$!?[\w-]+`)
	keys := map[string]string{}
	for name, plugin := range file.Plugins {
		for _, scope := range plugin.Scopes {
			is.True(t, scope == "nodemaintenances" || scope == "evacuations", "%s: the server has no resource %s", name, scope)
			is.Equal(t, keys[scope+" "+plugin.ShortCut], "")
			keys[scope+" "+plugin.ShortCut] = name
		}
		is.True(t, regexp.MustCompile(`^Shift-[A-Z]$`).MatchString(plugin.ShortCut), "%s: %q is no key", name, plugin.ShortCut)
		line := strings.TrimPrefix(strings.Join(plugin.Args, " "), "-c ")
		match := used.FindStringSubmatch(line)
		must.True(t, match != nil, "%s does not run the plugin: %s", name, line)
		is.True(t, slices.Contains(commands, match[1]), "%s: the plugin has no command %s", name, match[1])
		for _, word := range variable.FindAllString(line, -1) {
			is.True(t, slices.Contains([]string{"$NAME", "$NAMESPACE", "$CONTEXT"}, word), "%s: k9s has no variable %s", name, word)
		}
		is.Equal(t, plugin.Confirm, match[1] == "complete")
	}
	is.True(t, len(keys) >= 4, "found only %d keys", len(keys))
}
