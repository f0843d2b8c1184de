# What to watch is in docs/run/watch.md. Projectors on the machines are asked once a minute.
resource "aws_sns_topic" "alarms" {
  name = "${var.name}-alarms"
}

resource "aws_sns_topic_subscription" "alarms" {
  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = var.alarm_email
}

locals {
  log_alarms = merge([for zone in local.log_zones : {
    "${zone}-away" = {
      says      = "The log's server in ${zone} is away, or JetStream on it is not healthy. Look at its log."
      namespace = "Logplane", metric = "nats_unhealthy", statistic = "Minimum", above = 0, minutes = 5
      missing   = "breaching"
      of        = { Server = "log-${zone}" }
    }
    "${zone}-disk" = {
      says      = "The disk of the log's server in ${zone} is 80 % full: no projector purges the log, or log_gib is too small."
      namespace = "Logplane", metric = "nats_disk_percent", statistic = "Maximum", above = 80, minutes = 5
      missing   = "notBreaching"
      of        = { Server = "log-${zone}" }
    }
  }]...)

  alarms = {
    quorum = {
      says      = "No server of the log is healthy: it has no quorum, and nothing can be read or written."
      namespace = "Logplane", metric = "nats_unhealthy", statistic = "Minimum", above = 0, minutes = 5
      missing   = "breaching"
      of        = {}
    }
    lag = {
      says      = "The snapshot is more than 10 s behind the log: no projector commits. Look at its log."
      namespace = "Logplane", metric = "logplane_projection_lag_seconds", statistic = "Minimum", above = 10, minutes = 5
      missing   = "breaching" # no projector runs
      of        = { job = "projector" }
    }
    void = {
      says      = "Events lost. More than one now and then: a writer is stalled for longer than --log-retention."
      namespace = "Logplane", metric = "logplane_void_events_total", statistic = "Sum", above = 3, minutes = 60
      missing   = "notBreaching"
      of        = { job = "projector" }
    }
    errors = {
      says      = "The function's URL answers 5xx. Look at the log of the function."
      namespace = "AWS/Lambda", metric = "Url5xxCount", statistic = "Sum", above = 5, minutes = 5
      missing   = "notBreaching"
      of        = { FunctionName = aws_lambda_function.cell["api"].function_name }
    }
    watcher_errors = {
      says      = "The watchers answer 5xx. Look at the log of the machines."
      namespace = "AWS/ApplicationELB", metric = "HTTPCode_Target_5XX_Count", statistic = "Sum", above = 5, minutes = 5
      missing   = "notBreaching"
      of        = { LoadBalancer = aws_lb.watcher.arn_suffix }
    }
    watchers = {
      says      = "A watcher is not ready, or there is none."
      namespace = "AWS/ApplicationELB", metric = "UnHealthyHostCount", statistic = "Minimum", above = 0, minutes = 15
      missing   = "breaching"
      of        = { LoadBalancer = aws_lb.watcher.arn_suffix, TargetGroup = aws_lb_target_group.watcher.arn_suffix }
    }
    dead = {
      says      = "A job failed three times, or a schedule could not call one."
      namespace = "AWS/SQS", metric = "ApproximateNumberOfMessagesVisible", statistic = "Maximum", above = 0, minutes = 5
      missing   = "notBreaching"
      of        = { QueueName = aws_sqs_queue.dead.name }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "cell" {
  for_each            = merge(local.alarms, local.log_alarms)
  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.says
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.of
  statistic           = each.value.statistic
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.above
  period              = 60 * each.value.minutes
  evaluation_periods  = 1
  treat_missing_data  = each.value.missing
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
}

# A job that fails without a queue has nobody to say so.
resource "aws_cloudwatch_metric_alarm" "failed" {
  for_each            = aws_lambda_function.cell
  alarm_name          = "${var.name}-${each.key}-failed"
  alarm_description   = "The function '${each.key}' fails. Look at its log."
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  dimensions          = { FunctionName = each.value.function_name }
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 3
  period              = 900
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = [aws_sns_topic.alarms.arn]
}

resource "aws_budgets_budget" "cell" {
  name         = var.name
  budget_type  = "COST"
  limit_amount = tostring(var.budget)
  limit_unit   = "USD"
  time_unit    = "MONTHLY"
  dynamic "notification" {
    for_each = { ACTUAL = 80, FORECASTED = 100 }
    content {
      notification_type          = notification.key
      threshold                  = notification.value
      threshold_type             = "PERCENTAGE"
      comparison_operator        = "GREATER_THAN"
      subscriber_email_addresses = [var.alarm_email]
    }
  }
}
