# Tests the node agent on a Windows node of a test cluster, and records the results. It stops
# and starts services and, with -Restart, RESTARTS THIS MACHINE. Run it as an administrator, in the
# folder of haulout-node-agent.exe:
#   .\try.ps1                    installs the agent and checks it
#   .\try.ps1 -Restart           the same, then restarts the machine
#   .\try.ps1 -After             checks the node after the restart
#   .\try.ps1 -Uninstall         removes the agent, and compares the registry
# Send back the folder C:\haulout-try, with the version of Windows, containerd and the kubelet in it.
param([switch]$Restart, [switch]$After, [switch]$Uninstall, [string]$Config = "")
$ErrorActionPreference = "Stop"
$out = "C:\haulout-try"
New-Item -ItemType Directory -Force $out | Out-Null
$service = "haulout-node-agent"
$agent = ".\haulout-node-agent.exe"

function Note([string]$text) {
    $line = "{0:o} {1}" -f (Get-Date).ToUniversalTime(), $text
    Add-Content "$out\notes.txt" $line
    Write-Host $line
}
function Check([string]$what, [bool]$ok) {
    if ($ok) { Note "ok      $what" } else { Note "WRONG   $what" }
}
function Settings([string]$file) {
    reg query "HKLM\SYSTEM\CurrentControlSet\Control" /v PreshutdownOrder 2>&1 | Out-File "$out\$file-order.txt"
    reg query "HKLM\SYSTEM\CurrentControlSet\Services\$service" /s 2>&1 | Out-File "$out\$file-service.txt"
}
function Order {
    $value = Get-ItemProperty "HKLM:\SYSTEM\CurrentControlSet\Control" -Name PreshutdownOrder -ErrorAction SilentlyContinue
    if ($null -eq $value) { return @() }
    return @($value.PreshutdownOrder | ForEach-Object { $_.ToLower() })
}
function Logs([string]$name) {
    Copy-Item "C:\ProgramData\haulout-node-agent\*" $out -Force -ErrorAction SilentlyContinue
    Get-WinEvent -FilterHashtable @{ LogName = "Application"; ProviderName = $service } -ErrorAction SilentlyContinue |
        Format-List TimeCreated, Id, LevelDisplayName, Message | Out-File "$out\$name-events.txt" -Width 300
    Get-WinEvent -FilterHashtable @{ LogName = "System"; Id = 1074, 6005, 6006, 6008, 7036, 7043 } -MaxEvents 60 -ErrorAction SilentlyContinue |
        Format-List TimeCreated, Id, Message | Out-File "$out\$name-system.txt" -Width 300
}

if ($After) {
    # Expected: Windows notified the agent before the kubelet stopped, the pods left in the order of
    # their priorities, and Windows waited until the service had stopped.
    Check "Windows has started the service" ((Get-Service $service).Status -eq "Running")
    & "C:\Program Files\haulout-node-agent\haulout-node-agent.exe" status 2>&1 | Out-File "$out\after-status.txt"
    Settings "after"; Logs "after"
    Check "the event log has the shutdown (event 3)" ((Get-Content "$out\after-events.txt" | Select-String "Windows is about to shut down").Count -gt 0)
    Check "the event log has the stop after it (event 2)" ((Get-Content "$out\after-events.txt" | Select-String "has stopped").Count -gt 0)
    Note "compare in after-events.txt and after-system.txt: event 3, event 2, and 7036 of the kubelet, in this order"
    Note "check with kubectl get nodemaintenances,nodes: the NodeMaintenance must be Complete and the node schedulable"
    exit
}
if ($Uninstall) {
    & "C:\Program Files\haulout-node-agent\haulout-node-agent.exe" uninstall 2>&1 | Tee-Object "$out\uninstall.txt"
    Settings "uninstalled"
    $difference = Compare-Object (Get-Content "$out\before-order.txt") (Get-Content "$out\uninstalled-order.txt")
    Check "PreshutdownOrder is as it was before" ($null -eq $difference)
    Check "there is no service" ($null -eq (Get-Service $service -ErrorAction SilentlyContinue))
    exit
}

Get-ComputerInfo OsName, OsVersion, OsBuildNumber | Out-File "$out\windows.txt"
sc.exe qc kubelet | Out-File "$out\kubelet.txt"
sc.exe qc containerd | Out-File "$out\containerd.txt"
if (-not (Test-Path "$out\before-order.txt")) { Settings "before" }
$arguments = @("install")
if ($Config -ne "") { $arguments += "--config=$Config" }
& $agent $arguments 2>&1 | Tee-Object "$out\install.txt"
Check "the service runs" ((Get-Service $service).Status -eq "Running")
Start-Sleep 5
& $agent status 2>&1 | Tee-Object "$out\status.txt"
Settings "installed"
sc.exe qfailure $service | Out-File "$out\recovery.txt"
Check "Windows is configured to restart the service after a failure" ((Get-Content "$out\recovery.txt" | Select-String "RESTART").Count -gt 0)
$order = Order
$own = [array]::IndexOf($order, $service)
$kubelet = [array]::IndexOf($order, "kubelet")
Check "the service is in PreshutdownOrder, before the kubelet" ($own -ge 0 -and ($kubelet -lt 0 -or $own -lt $kubelet))
sc.exe control $service paramchange | Out-Null
Check "the service accepts a change of parameters" ($LASTEXITCODE -eq 0)
Restart-Service $service
Check "the service restarts" ((Get-Service $service).Status -eq "Running")
Stop-Process -Id (Get-CimInstance Win32_Service -Filter "Name='$service'").ProcessId -Force
for ($i = 0; $i -lt 20 -and (Get-Service $service).Status -ne "Running"; $i++) { Start-Sleep 1 }
Check "Windows has restarted the killed service" ((Get-Service $service).Status -eq "Running")
Logs "installed"
Note "create pods of different priorities on this node, then run this script with -Restart"
if ($Restart) {
    Note "restarting; watch from another machine: kubectl get nodemaintenances,pods -A --watch"
    shutdown.exe /r /t 0
}
